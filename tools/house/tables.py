"""Tables of the redesign: where each module goes, and new names. Old modules are relative to `splitter`."""

MODULES = """
system/env <- system/environment system/epoch
system/fs <- system/files system/moving system/places
system/process <- system/run system/child system/signals
system/progress <- system/progress
system/resources <- system/cores system/memory
system/schema <- schemas decoding
system/toml <- recipe/toml cache/toml
system/units <- devicecode/sizes
arch/compat <- arch/compat
arch/gpu_names <- advising/names
arch/gpus <- arch/table
arch/parsing <- arch/spellings
arch/target <- arch/target
formats/ar <- binfmt/ar
formats/cubin <- binfmt/cubin
formats/descriptor <- binfmt/note
formats/device_pack <- devicecode/pack devicecode/packing
formats/elf <- binfmt/elf binfmt/elf_header binfmt/elf_sections binfmt/elf_notes
formats/elf_dynamic <- binfmt/dynamic binfmt/symbols binfmt/relocations
formats/fatbin <- binfmt/fatbin binfmt/entry
formats/fatbin_wrappers <- binfmt/wrappers
formats/pe <- binfmt/pe
formats/reader <- binfmt/cursor binfmt/mapped
wheels/diff <- wheels/difference wheels/ranges
wheels/filename <- wheels/names
wheels/installed <- wheels/installed
wheels/member_names <- wheels/member
wheels/metadata <- wheels/metadata wheels/info
wheels/offsets <- wheels/unpacked
wheels/platform_tags <- wheels/platform stages/repair
wheels/reader <- wheels/reader wheels/inspection wheels/unpacking
wheels/record <- wheels/record
wheels/rewrite <- wheels/revision splitting/archive
wheels/writer <- wheels/writer
wheels/zip_checks <- wheels/archive wheels/oddities
wheels/zip_writer <- wheels/packing wheels/press wheels/joining
devicecode/apply <- stages/slim
devicecode/compression <- devicecode/recompress devicecode/decompress
devicecode/edits <- devicecode/edits devicecode/rewrite
devicecode/effects <- devicecode/effects
devicecode/elf_shrink <- devicecode/shrink devicecode/headers devicecode/moving
devicecode/file_plan <- devicecode/fileplan devicecode/objects devicecode/stubs
devicecode/kernels <- devicecode/kernels devicecode/names devicecode/runtime_calls
devicecode/library <- devicecode/library
devicecode/model <- devicecode/images devicecode/inventory devicecode/rows
devicecode/partition <- devicecode/shares
devicecode/registered <- splitting/movable
devicecode/scan <- devicecode/read devicecode/contents devicecode/outside devicecode/scan
devicecode/select <- devicecode/choose devicecode/selection
devicecode/stats <- devicecode/growth devicecode/devices devicecode/limits
devicecode/verify <- devicecode/proof
nvcc/cmdline <- nvcc/arguments nvcc/options
nvcc/depfile <- nvcc/rules nvcc/included
nvcc/dryrun <- nvcc/dryrun
nvcc/host_tools <- nvcc/host
nvcc/per_target <- nvcc/shard
nvcc/reorder <- nvcc/loosen
nvcc/step_args <- nvcc/shell nvcc/commands
nvcc/steps <- nvcc/steps
nvcc/toolkit <- nvcc/toolkit nvcc/finding nvcc/targets
scheduler/estimates <- engine/forecast
scheduler/find_pool <- system/find_pool
scheduler/graph <- engine/graph
scheduler/history <- engine/history
scheduler/jobserver <- system/jobserver
scheduler/outcome <- engine/outcome
scheduler/plan <- engine/schedule engine/admission engine/spreading
scheduler/pool <- system/pool
scheduler/reports <- engine/dot engine/table engine/trace engine/explain
scheduler/run_log <- engine/journal engine/waits
scheduler/runner <- engine/loop engine/execute engine/recollection engine/memo
scheduler/shared_pool <- system/shared_pool system/turns
scheduler/task <- engine/active engine/watch
cache/backends <- cache/addresses
cache/cache <- cache/cache
cache/config <- cache/settings
cache/entry <- cache/entry
cache/file_digests <- cache/digests
cache/keys <- cache/parts
cache/leases <- cache/lease
cache/local <- cache/store cache/checking cache/archive cache/trimming
cache/manifest <- cache/manifest
cache/miss_log <- cache/notebook
cache/remote <- cache/remote cache/away cache/budget cache/uploads
cache/stats <- cache/statistics
compiler/build_session <- reuse/building reuse/announcing
compiler/compare_with_nvcc <- drop_in/comparing
compiler/compile_pass <- reuse/passes
compiler/direct_cache <- reuse/compilations reuse/changes
compiler/dryrun_query <- drop_in/asking
compiler/include_scan <- reuse/includes reuse/asking reuse/sight
compiler/invocation <- drop_in/order
compiler/module_id <- drop_in/naming drop_in/definitions
compiler/object_cache <- reuse/units
compiler/preprocessed <- reuse/texts reuse/lines
compiler/replay <- reuse/repeatable reuse/keeping
compiler/replay_check <- reuse/repeating reuse/sampling
compiler/request_key <- reuse/requests
compiler/step_cache <- reuse/steps reuse/products
compiler/step_key <- reuse/commands
compiler/tool_identity <- reuse/tools reuse/versions reuse/surroundings
compiler/wrapper <- drop_in/standing_in drop_in/running drop_in/artefacts
compiler/wrapper_cache <- drop_in/caching
compiler/wrapper_graph <- drop_in/planning
recipe/apply_policy <- recipe/policies
recipe/faults <- recipe/faults
recipe/flags <- recipe/flags
recipe/inputs <- recipe/inputs recipe/includes
recipe/load <- recipe/load
recipe/load_prebuilt <- recipe/load_finished recipe/finished_policies
recipe/model <- recipe/tables recipe/project recipe/paths recipe/interface
recipe/policy <- recipe/policy
recipe/prebuilt <- recipe/finished
recipe/schema <- recipe/schema
recipe/toml_document <- recipe/document recipe/locate
recipe/values <- recipe/values recipe/globs
release/checks <- promises stages/verify
release/completeness <- completeness/check completeness/listed completeness/pins completeness/remedies
release/context <- workshop
release/identity <- identity
release/install_test <- completeness/installing
release/kernel_coverage <- completeness/kernels completeness/reading
release/loader_build <- stages/loader
release/manifest <- provenance/manifest provenance/images provenance/schema
release/merge <- gathering
release/plugin_wheels <- stages/pack
release/report <- report reported listing splitting/request splitting/earlier
release/sbom <- provenance/sbom
release/sdist <- stages/source
release/split_checks <- splitting/verify
release/split_read <- splitting/release completeness/wheels
release/trial <- stages/trial
release/variants <- provenance/variants splitting/variants
build/build_id <- stages/identify
build/compile <- stages/compile
build/context <- site
build/link <- stages/link stages/device_link
build/pipeline <- pipeline
build/plan <- planning
build/provenance <- provenance/built provenance/bills provenance/origins
split/core_wheel <- splitting/core splitting/meta
split/find <- splitting/fat splitting/origin
split/from_recipe <- splitting/by_recipe splitting/product splitting/forecast
split/pack_wheel <- splitting/device
split/provenance <- splitting/provenance
split/restore <- splitting/restore splitting/join
split/split <- splitting/wheel splitting/making splitting/file
split/stub <- splitting/stubs
split/take_apart <- splitting/library splitting/staying
slim/file <- slimming/file
slim/installed <- slimming/installation slimming/records
slim/report <- slimming/report slimming/notes
slim/request <- slimming/request
slim/site_packages <- slimming/site slimming/keeping
slim/staging <- slimming/staging
slim/transaction <- slimming/exchange slimming/journal
slim/wheel <- slimming/wheel slimming/libraries slimming/checks
index/client <- publishing/index publishing/served publishing/repository
index/journal <- publishing/journal
index/pip_resolve <- publishing/resolving
index/plan <- publishing/plan publishing/rules publishing/telling
index/preflight <- publishing/roles publishing/attestations publishing/checking
index/publish <- publishing/publish publishing/publication
index/read_back <- publishing/proving
index/release <- publishing/release
index/retry <- publishing/patience publishing/waiting
index/state <- publishing/looking
index/static_folder <- indexing/folder indexing/checking
index/static_model <- indexing/entries indexing/sets
index/static_pages <- indexing/pages
index/static_update <- indexing/update indexing/intake
index/twine_child <- publishing/twine_child
index/upload <- publishing/uploading publishing/twine
inspect/advise <- advising/advice
inspect/breakdown <- views/parts views/colours
inspect/gpu_table <- advising/users
inspect/html <- views/page
inspect/inspect <- stages/inspect
inspect/json <- views/document
inspect/svg <- views/picture views/tree views/treemap
inspect/target_search <- advising/offer advising/weighing advising/proposals
inspect/text <- views/text views/slimmed views/advice
cli/advise <- cli/advise
cli/build <- cli/build cli/finished
cli/cache <- cli/cache cli/cache_verify
cli/diff <- cli/diff
cli/doctor <- cli/doctor
cli/gather <- cli/gather
cli/index <- cli/index
cli/inspect <- cli/inspect
cli/join <- cli/join
cli/main <- cli/main
cli/nvcc <- cli/nvcc
cli/options <- cli/options cli/caching cli/variants
cli/plan <- cli/plan
cli/publish <- cli/publish cli/publish_options
cli/slim <- cli/slim
cli/split <- cli/split
cli/toolkit <- cli/toolkit
cli/verify <- cli/verify cli/release_check
backend <- backend
errors <- errors
"""


def house():
    """Return the new place of each old module."""
    out = {}
    for line in MODULES.strip().splitlines():
        new, _, old = line.partition(" <- ")
        out.update(dict.fromkeys(old.split(), new))
    return out


PACKAGE = {  # where modules go that no table names
    "advising": "inspect", "arch": "arch", "binfmt": "formats", "cache": "cache", "cli": "cli", "completeness": "release",
    "devicecode": "devicecode", "drop_in": "compiler", "engine": "scheduler", "indexing": "index", "nvcc": "nvcc",
    "provenance": "release", "publishing": "index", "recipe": "recipe", "reuse": "compiler", "slimming": "slim",
    "splitting": "split", "stages": "build", "system": "system", "views": "inspect", "wheels": "wheels",
}

DOCS = {
    "archsplit": "Split big CUDA wheels into a core wheel and one small plugin wheel per GPU target.",
    "archsplit.cli": "The command line: one module per verb.",
    "archsplit.build": "A recipe to core and plugin wheels: plan, compile, link, package.",
    "archsplit.split": "A fat wheel or library to a core and device packs, and back.",
    "archsplit.slim": "Device code removed from files, wheels and installed environments.",
    "archsplit.index": "Publishing to a package index, and a static index in a folder.",
    "archsplit.inspect": "Reports on device code as text, JSON, HTML and SVG; advice on targets.",
    "archsplit.release": "One description of a set of wheels, built or split: identity, report, checks.",
    "archsplit.compiler": "The nvcc wrapper, and the compile cache that knows about nvcc.",
    "archsplit.recipe": "The recipe file: sources, targets, names and policies.",
    "archsplit.devicecode": "Device code in files: scan, select, edit, shrink, verify.",
    "archsplit.wheels": "The wheel format: reading, writing, rewriting, metadata.",
    "archsplit.nvcc": "Knowledge about nvcc: command lines, dry runs, steps, toolkits. Runs nothing.",
    "archsplit.scheduler": "A graph of commands, a job pool and memory limits: a small ninja.",
    "archsplit.cache": "A content-addressed store with remotes; knows no compiler.",
    "archsplit.formats": "Bytes to records: ELF, fatbin, cubin, ar, PE, descriptor, device pack.",
    "archsplit.arch": "Compute capabilities, targets, and the GPUs that have them.",
    "archsplit.system": "Processes, files, environment, units: all effects on the machine.",
}

RENAMES = """
advising/advice: Wish=AdviceRequest Fate=TargetListEffect
advising/offer: Offer=TargetCosts offer_of_inventory=costs_of_inventory offer_of_release=costs_of_release
advising/users: Stranger=UnknownGpu Users=GpuTable read_users=read_gpu_table
advising/weighing: Weighing=TargetSearch
arch/compat: is_known=is_published known_targets=published_targets describe=capability_text matrix=compatibility_matrix
arch/table: Known=PublishedCapability
binfmt/ar: MAGIC=AR_MAGIC Member=ArchiveMember
binfmt/entry: Entry=FatbinEntry Flag=EntryFlag
binfmt/fatbin: MAGIC=FATBIN_MAGIC
binfmt/pe: MAGIC=PE_MAGIC
binfmt/note: SECTION=NOTE_SECTION decode=decode_note
binfmt/wrappers: SECTION=WRAPPER_SECTION
binfmt/device_pack: MAGIC=PACK_MAGIC CONTAINER=PACK_CONTAINER
cache/addresses: remote_at=open_remote
cache/away: Away=CircuitBreaker FOLDER=BREAKER_FOLDER
cache/budget: Budget=TimeBudget
cache/cache: Found=CacheHit
cache/checking: Checked=StoreCheck check_store=verify_store
cache/entry: Entry=CacheEntry encode=encode_entry decode=decode_entry
cache/manifest: Row=ManifestEntry encode_rows=encode_manifest decode_rows=decode_manifest
cache/notebook: Notebook=MissLog Parts=ComponentDigests
cache/parts: Part=KeyComponent SCHEMA=KEY_SCHEMA differences=key_differences
cache/settings: TABLE=SETTINGS_TABLE
cache/statistics: Count=StatKind Tally=CacheStats
cache/store: Kind=StoreKind intact=is_intact
cache/trimming: Trimmed=EvictionResult is_due=is_eviction_due trim=evict measure=store_size clear=clear_store
cli/diff: differences=wheel_differences SCHEMA=DIFF_SCHEMA
cli/join: SCHEMA=JOIN_SCHEMA
cli/nvcc: _become=_exec_nvcc
cli/options: order=build_request workshop=effects
cli/plan: SCHEMA=PLAN_DOCUMENT_SCHEMA
cli/release_check: SCHEMA=RELEASE_CHECK_SCHEMA
cli/toolkit: SCHEMA=TOOLKIT_SCHEMA
cli/verify: SCHEMA=VERIFY_SCHEMA
cli/finished: build_finished=build_prebuilt plan_finished=plan_prebuilt
completeness/check: Demands=Requirements Verdict=CheckResult
completeness/installing: Release=InstallRelease
completeness/kernels: Kernels=KernelCoverage
completeness/wheels: each_wheel=read_wheels
decoding: faults_of=schema_faults
devicecode/choose: Service=Coverage service_of=coverage_of chosen=selected_images needed=needed_images
devicecode/contents: Contents=FileContents contents_of=read_contents
devicecode/decompress: MOST=MAX_OUTPUT decompressed=decompress
devicecode/edits: Piece=EditPiece applied=apply_edits size_of=edited_size
devicecode/fileplan: Order=FileEdit planned=plan_rewrite Part=ContainerHolder parts_of=container_holders Mode=EditMode
devicecode/growth: Change=SizeChange
devicecode/headers: Row=ProgramHeader Table=HeaderTable
devicecode/limits: Limits=SizeLimits broken=exceeded_limits
devicecode/moving: compacted=compact following=relocate_section
devicecode/objects: shrunk_fatbin=shrink_fatbin shrunk_object=shrink_object shrunk_archive=shrink_archive
devicecode/outside: Search=ContainerSearch
devicecode/pack: MAGIC=PACK_MAGIC CONTAINER=PACK_CONTAINER
devicecode/proof: proven=verify_kept_images
devicecode/rewrite: Trimmed=FilteredContainer as_it_is=unchanged_container trimmed=filter_container in_place=zero_in_place
devicecode/rows: Row=InventoryRow rows_of=inventory_rows summed=sum_rows
devicecode/scan: places_of=magic_offsets CONTAINER=CONTAINER_MAGIC release=release_pages
devicecode/shares: By=PackBy Share=PackContents Shares=PackPlan shared=plan_packs selected=selected_packs
devicecode/shrink: Hole=FreedSpace shrunk=shrink_elf
drop_in/artefacts: write_artefacts=write_reports
drop_in/asking: Answer=DryRunResult ask=query_dryrun
drop_in/caching: Caching=WrapperCacheSession
drop_in/comparing: Reference=NvccReference compare=compare_outputs
drop_in/definitions: without_own_functions=strip_own_functions
drop_in/naming: unit_seed=module_id_seed
drop_in/order: LeftToNvccError=FallBackToNvccError Order=Invocation Artefacts=ReportFiles
drop_in/planning: Plan=WrapperGraph plan=plan_graph
drop_in/running: Engine=WrapperRunner
drop_in/standing_in: Surroundings=WrapperContext stand_in=run_wrapper
engine/active: Active=RunningTask starved=is_starved fault=task_fault
engine/admission: Line=MemoryAdmission Expected=ExpectedUse
engine/dot: dot=graph_dot
engine/explain: explain=explain_run
engine/forecast: Known=StepEstimate Forecast=Estimates
engine/journal: Journal=RunLog
engine/loop: Loop=GraphRunner
engine/memo: Memo=ResultCache
engine/outcome: Finished=FinishedStep Start=StepStart
engine/recollection: Asking=Lookup Recollection=PendingLookups
engine/spreading: Spread=CoreAllocator cores_for=allocate_cores
engine/table: table=steps_table
engine/trace: trace=chrome_trace
engine/waits: Waited=WaitRecord Waits=WaitLog
engine/watch: Watch=MemoryWatchdog
identity: FILE_NAME=IDENTITY_FILE SCHEMA=IDENTITY_SCHEMA FACE_FOLDER=LOADER_PACKAGE
indexing/entries: Release=IndexRelease Entry=IndexEntry Project=IndexProject order_of=index_order pins_of=exact_pins
indexing/folder: opened=open_folder locked=lock_folder
indexing/intake: Candidate=NewWheel wheels_of=new_wheels candidate=read_new_wheel
indexing/pages: moment=timestamp_text
indexing/sets: Limits=RetentionLimits sets_of=release_sets pruned=prune
indexing/update: Change=IndexChange Changed=IndexUpdate changed=update_index
nvcc/arguments: not_followed=unsupported_reason taken_apart=parse_arguments Arguments=NvccArguments
nvcc/commands: images_of=fatbinary_images kind_of=step_kind written_by=step_outputs mentioned=mentioned_files values=option_values
nvcc/dryrun: parse=parse_dryrun
nvcc/finding: Candidate=NvccCandidate candidates=nvcc_candidates
nvcc/loosen: Loosened=RelaxedPlan loosen=relax_order
nvcc/shard: Shards=TargetObjects shard=per_target_steps
nvcc/targets: unsupported=unsupported_targets
nvcc/toolkit: chosen=choose_toolkit
stages/folder_check: check=check_folder
planning: Order=BuildRequest planned=plan_build
promises: Seen=WheelFacts
provenance/manifest: Source=SourceFile Image=ManifestImage FILE_NAME=MANIFEST_FILE SCHEMA=MANIFEST_SCHEMA
provenance/sbom: Part=BillComponent FOLDER=SBOM_FOLDER encode=encode_bill
provenance/schema: main=print_manifest_schema
provenance/variants: FOLDER=VARIANTS_FOLDER file_name=variants_file_name
publishing/checking: check_release=preflight_check
publishing/journal: Journal=PublishJournal SCHEMA=PUBLISH_JOURNAL_SCHEMA
publishing/looking: Look=IndexStateReader
publishing/patience: Patience=RetryPolicy Transient=RetryableError moment=utc_text
publishing/plan: View=IndexState Standing=NameStatus Step=UploadStep Plan=PublishPlan planned=plan_publish
publishing/proving: Prover=ReadBack
publishing/publication: SCHEMA=PUBLICATION_SCHEMA
publishing/release: Release=UploadRelease
publishing/resolving: Bonds=CoreRequirements bonds_of=read_requirements
publishing/served: Served=IndexFile Project=IndexPage digest_of=sha256_hex
publishing/telling: SCHEMA=PUBLISH_PLAN_SCHEMA
publishing/twine: Answer=TwineResult refused=is_refused
publishing/twine_child: main=run_request
publishing/waiting: seconds_to_wait=retry_after_seconds
recipe/document: FILE_NAME=RECIPE_FILE
recipe/faults: faults_of=recipe_faults
recipe/finished: FinishedSource=PrebuiltSource is_finished=is_prebuilt refuse_finished=refuse_prebuilt
recipe/finished_policies: finished_policy_faults=prebuilt_policy_faults applied_to_finished=apply_policy_to_prebuilt
recipe/interface: words=interface_words
recipe/paths: File=FilePath
recipe/policies: applied=apply_policy
recipe/policy: following=next_version
recipe/schema: main=print_recipe_schema
recipe/values: Refused=InvalidValue TABLE=TABLE_CONFIG Symbol=SymbolName
report: FILE_NAME=REPORT_FILE SCHEMA=REPORT_SCHEMA
reported: Row=ReportedFile Reported=ReportedWheels
reuse/announcing: announcement=cache_summary
reuse/asking: asked_for=has_include_names
reuse/building: Remembering=BuildCacheSession remembering=open_build_session
reuse/changes: explained=miss_reasons
reuse/commands: Known=StepKey known=step_key is_precise=has_line_info is_odd=has_unsupported_flags with_listing=with_depfile LISTING=DEPFILE_FLAG
reuse/compilations: Recalled=CachedResult Done=CompletedCompile Compilations=DirectCache
reuse/includes: Reading=ObservedReads Read=ManifestUpdate describe=describe_reads
reuse/keeping: keep=save_recording
reuse/lines: telling=strip_unused_line_markers
reuse/passes: Part=PassOutput Pass=CompilePass
reuse/repeatable: Repeatable=Recording needed=needed_steps encode=encode_recording decode=decode_recording
reuse/repeating: Repeated=ReplayResult Again=Replayer
reuse/requests: Request=CompileRequest request=compile_request
reuse/sampling: Sample=ReplaySample Sampler=ReplaySampler
reuse/sight: Sight=FileResolver VARIABLE=VARIABLE_PREFIX
reuse/steps: Told=StepEvent StepMemory=StepCache _Asked=_StepLookup
reuse/surroundings: environment_parts=hashed_environment
reuse/texts: digest_of=text_digest entered=include_markers names_in=included_files anonymous=to_placeholder named=from_placeholder
reuse/tools: Tools=ToolIdentities identity_question=identity_query
reuse/units: Objects=UnitObjects Known=CachedUnit Unit=SourceUnit Units=ObjectCache
reuse/versions: shown=version_text
schemas: documented=documented_schema
site: BuildSite=BuildContext
drop_in/nvcc_task: as_step=step_from_nvcc
slimming/exchange: Exchange=Transaction exchange_in=open_transaction FOLDER=TRANSACTION_FOLDER
slimming/journal: Change=FileChange Journal=SlimJournal decode=decode_journal SCHEMA=SLIM_JOURNAL_SCHEMA
slimming/libraries: Library=SlimmedLibrary
slimming/report: SCHEMA=SLIM_SCHEMA
splitting/device: Packer=PackWriter
splitting/fat: Fat=SplittableLibrary Found=ScanResult find_fat=find_splittable
splitting/file: Owner=LibraryProject named_owner=named_project
splitting/by_recipe: owner_of=project_of
splitting/forecast: SCHEMA=SPLIT_PLAN_SCHEMA forecast=plan_split
splitting/library: Parts=StrippedLibrary taken_apart=strip_library
devicecode/container_images: images_of=container_images
splitting/making: Maker=WheelJobs
splitting/movable: Place=RegisteredContainer places_of=registered_containers
splitting/product: VARIABLE=OUTPUT_VARIABLE Room=OutputFolder product_of=find_product
splitting/request: Install=InstallDefaults
split_report: Stay=UnmovedCode SCHEMA=SPLIT_SCHEMA REPORT=SPLIT_REPORT_FILE
reuse/answers: Answers=ReplyCache
reuse/direct_record: Invocation=DirectRequest Place=OutputPlace restore=restore_hit save=save_record
cli/idle: copied=copy_unchanged
stages/compile: Objects=ObjectPlan
stages/inspect: Question=InspectRequest
stages/loader: Observed=ObservedLibrary
stages/pack: Packer=WheelPlanner
stages/verify: Release=CheckedRelease
system/child: Ended=ExitStatus
system/files: writing=output_errors reading=input_errors output_folder=output_dir private_folder=temporary_dir
system/find_pool: Found=PoolChoice
system/moving: check_free=check_targets move_all=replace_all
system/pool: Budget=MemoryBudget Want=PoolRequest Refused=Denied Why=WaitReason Row=PoolEntry
system/run: check=run_checked
system/turns: Drain=DrainLock Queue=SlotQueue
views/advice: SCHEMA=ADVICE_SCHEMA
views/document: SCHEMA=INVENTORY_SCHEMA
views/parts: Part=BreakdownPart parts_of=breakdown
wheels/installed: Row=InstalledFile
wheels/joining: open_ended=without_final_block
wheels/member: Member=WheelMember colliding=duplicate_names
wheels/metadata: Author=MetadataAuthor encode=encode_metadata decode=decode_metadata
wheels/oddities: oddities=zip_faults
wheels/packing: Intake=HashingReader
wheels/platform: Verdict=AuditwheelVerdict
wheels/press: Press=ParallelDeflater Piece=DeflatePiece
wheels/ranges: MOST=MAX_RANGES
wheels/record: Entry=RecordRow digest_of=record_digest encode=encode_record decode=decode_record
workshop: Workshop=Effects
"""

# what two merged modules call alike: (old module): name=new …; filled by hand from the report of collisions
PRIVATE = """
stages/device_link: _RUNTIME=_DEVICE_RUNTIME
reuse/lines: _MARKER=_LINE_MARKER _NAME=_LAST_WORD
reuse/texts: _MARKER=_MARKER_OR_BLANK _NAME=_MARKER_FILE
devicecode/shrink: _WORD=_WORD_SIZE
devicecode/outside: _MACHINE_AT=_ELF_MACHINE_AT
devicecode/packing: _KINDS=_KIND_NUMBERS
binfmt/relocations: _WORD=_ADDRESS
binfmt/entry: _ALIGNMENT=_ENTRY_ALIGNMENT _VERSION=_ENTRY_VERSION
views/advice: _WORDS=_ADVICE_WORDS
views/slimmed: _files=_slimmed_files
nvcc/included: _ESCAPED=_MAKE_ESCAPE
nvcc/rules: _ESCAPED=_MARKER_ESCAPE
reported: _OBJECT=_ANY_OBJECT
splitting/earlier: _REPORT=_EARLIER_REPORT
engine/dot: _lines=_dot_lines
engine/explain: _size=_memory_text
engine/table: _size=_file_size
wheels/revision: _SIGNATURES=_RECORD_SIGNATURES
wheels/joining: _BLOCK=_TAIL_BLOCK
"""

# definitions that move to another module: old module: names > pseudo module, which the table below places
MOVES = []

EXTRA = {
    "provenance/schema": "release/manifest_schema",  # a program of its own
    "views/slimmed": "slim/text",  # what it shows is known to `slim` alone
    "drop_in/nvcc_task": "compiler/wrapper_graph",
    "stages/folder_check": "release/checks",
    "devicecode/container_images": "devicecode/registered",
    "splitting/obstacles": "split/take_apart",
    "wheels/member_place": "wheels/installed",
    "provenance/tool_parts": "release/sbom",
    "publishing/descriptions": "index/descriptions",
    "findings": "release/findings",
    "split_report": "release/split_report",
    "binfmt/device_pack": "formats/device_pack",
    "arch/gpus": "arch/gpus",
    "system/units": "system/units",
    "system/toml": "system/toml",
    "reuse/answers": "compiler/reply_cache",
    "reuse/direct_record": "compiler/direct_record",
    "reuse/assembly": "compiler/assembly",
    "reuse/clock": "compiler/clock_macros",
    "reuse/twins": "compiler/once_headers",
    "slimming/idle": "slim/idle",
    "cli/idle": "cli/idle",
}

# definitions that move first: old module, names, a module of their own that EXTRA places
MOVES = [
    ("site", ("as_step", "_READING", "_C_SECONDS"), "drop_in/nvcc_task"),
    ("pipeline", ("check", "_judge"), "stages/folder_check"),
    ("splitting/library", ("images_of",), "devicecode/container_images"),
    ("splitting/movable", ("stays_of",), "splitting/obstacles"),
    ("splitting/origin", ("installed_place", "_SITE_PACKAGES"), "wheels/member_place"),
    ("provenance/origins", ("own_tools", "_OWN_PACKAGES"), "provenance/tool_parts"),
    ("provenance/bills", ("loader_part", "LOADER"), "provenance/tool_parts"),
]


TEXT = [  # in files that are not Python, and in strings: regular expression, replacement
]
def pairs(text):
    out = {}
    for line in text.strip().splitlines():
        if not line.strip(): continue
        module, _, rest = line.partition(":")
        for p in rest.split():
            old, _, new = p.partition("=")
            out[(module.strip(), old)] = new
    return out
