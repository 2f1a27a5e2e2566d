extern "C" const char *fastscale_version() {
    return "1.0.0";
}
