/* The sentence that goes with a return code, one for each thread. */
#ifndef ARCHSPLIT_DETAIL_H
#define ARCHSPLIT_DETAIL_H

/* Replace the sentence. What doesn't fit is cut off. */
__attribute__((format(printf, 1, 2))) void detail_set(const char *format, ...);

/* Add to the sentence, as long as it fits. */
__attribute__((format(printf, 1, 2))) void detail_append(const char *format, ...);

const char *detail_text(void);

#endif
