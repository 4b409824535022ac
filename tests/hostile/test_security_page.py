"""docs/security.md read sentence by sentence: each stands here with the test that shows it.

A key is how a sentence, a bullet or a row of a table begins.  A value names tests, as `file:test` without the folder's
and file's usual beginnings; one in brackets says why no test of ours can show it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "bounded": "hostile/test_bounded_work.py", "doors": "hostile/test_hostile_entry_points.py",
    "outputs": "hostile/test_hostile_outputs.py", "pickles": "hostile/test_hostile_pickles.py",
    "places": "hostile/test_hostile_places.py", "security": "hostile/test_hostile_security.py",
    "box": "hostile/test_hostile_sandbox.py", "torch": "hostile/test_hostile_torch.py",
    "platform": "hostile/test_hostile_platform.py", "arrays": "hostile/test_hostile_arrays.py",
    "sentences": "hostile/test_security_sentences.py",
    "races": "faults/test_races.py", "calls": "faults/test_calls.py", "signals": "faults/test_signals.py",
    "fuzz": "fuzz/test_fuzz.py", "folders": "commands/check/test_unsafe_in_folders.py",
    "check": "commands/check/test_check.py", "forms": "formats/test_unsafe_forms.py",
    "texts": "hostile/test_hostile_texts.py", "files": "cli/test_inspect_files.py",
    "crashes": "faults/test_crashes.py",
    "memory": "faults/test_memory.py",
    "small": "cli/test_small_outputs.py", "machine": "formats/test_pickle.py",
    "codes": "laws/test_exit_codes.py", "trees": "laws/test_folders_are_files.py",
    "bson": "formats/test_bson.py", "tensorflow": "formats/test_tensorflow.py",
    "safetensors": "hostile/test_hostile_safetensors.py", "paths": "laws/test_paths.py",
    "kept": "cli/test_inputs_kept.py", "workflow": "cli/test_workflow_commands.py",
    "reports": "cli/test_check_forms.py", "inflating": "commands/test_inflating.py",
    "locks": "lockfile/test_lock_text.py",
    "passes": "laws/test_one_pass.py", "unread": "laws/test_pickles_are_followed.py",
    "zips": "laws/test_archives_are_read.py", "fires": "oracles/test_what_fires.py",
}  # fmt: skip
PAGE = """
[Checkpoints](glossary | [what the page is about]
This page lists | [what the page is about]
promise | [head of a table]
**Nothing in a file is executed.** | security:test_a_call_that_no_tensor_needs fuzz:test_a_short_run
**Work is bounded.** | bounded:test_work_grows_as_the_file_does
**Outputs are atomic.** | calls:test_a_call_fails signals:test_killed_at_every_call
**Permissions are never widened** | outputs:test_a_file_is_as_open_as_its_source_less_the_umask
**Nothing is written outside | fuzz:test_a_short_run races:test_an_output_of_somebody_else_arrives
**An input that changes is noticed** | races:test_an_input_changes
**The output equals the input** | fuzz:test_a_short_run
An output is written as | outputs:test_what_is_being_written_is_nobody_elses
Then | [two words]
a new file or folder is put | races:test_an_output_of_somebody_else_arrives
`lock`, `report` and `check` replace | kept:test_other_files_are_never_replaced
`--force` never replaces a checkpoint | kept:test_no_file_of_the_model_is_overwritten
`--force` replaces a file by one rename | signals:test_an_old_output_is_replaced_in_one_call
`--force` checks what it may replace | outputs:test_what_arrives_in_a_folder_while_it_is_replaced_is_kept
Where a file system cannot exchange names | outputs:test_a_folder_is_replaced_without_exchange
SIGINT, SIGTERM | signals:test_where_names_cannot_be_exchanged signals:test_an_old_output_that_was_away_is_put_back
A folder under such a name | outputs:test_the_old_folder_is_never_lost
the folder that holds the output is flushed. | calls:test_a_call_fails
If that fails, the output is in its place | calls:test_a_call_fails
A run that was killed | outputs:test_a_later_run_removes_what_a_killed_one_left_and_says_so
Each is locked | outputs:test_what_a_living_run_writes_stays
On a file system without locks | outputs:test_without_locks_nothing_is_removed
A family's `--force` | races:test_a_family_that_was_edited_is_not_replaced
Names in a checkpoint are printed | safetensors:test_a_name_is_shown_and_not_obeyed
Where `GITHUB | workflow:test_no_name_is_a_command_of_a_workflow reports:test_hostile_names_are_obeyed_nowhere
what | [head of a table]
a file | outputs:test_a_file_is_as_open_as_its_source_less_the_umask outputs:test_of_several_inputs_the_strictest_counts
a lock, a page or a report | small:test_an_output_is_no_more_open_than_its_inputs_and_what_it_replaces
a folder | outputs:test_a_folder_and_what_came_along_are_as_open_as_their_sources
a copied sidecar file | outputs:test_a_folder_and_what_came_along_are_as_open_as_their_sources
what replaces something | outputs:test_what_is_replaced_keeps_its_permissions
Access control lists | [what is not done]
For each format, `tests/hostile/worst.py` | bounded:test_work_grows_as_the_file_does
From n to 4n bytes | bounded:test_work_grows_as_the_file_does
objects that a pickle | sentences:test_what_expands_beyond_a_limit_is_unsafe machine:test_limits_are_those_given
tensors in a pickle | sentences:test_what_expands_beyond_a_limit_is_unsafe
characters of their names | sentences:test_what_expands_beyond_a_limit_is_unsafe
bytes of a zip member | sentences:test_a_limit_is_what_the_page_says torch:test_a_hostile_file_is_refused
bytes that are searched | sentences:test_a_limit_is_what_the_page_says bounded:test_work_grows_as_the_file_does
processor time of the process | box:test_the_time_grows_with_the_file
bytes of tensors that are | inflating:test_no_writer_writes_more_than_the_limit
The process that reads HDF5 | box:test_a_signal_ends_a_command_that_reads_an_endless_file
It limits time and memory | box:test_files_that_hung_are_refused box:test_an_answer_is_believed_no_more_than_the_file
Systems without `fork` | platform:test_without
**A disk that lies.** | [what is not promised]
**A change that leaves no trace.** | [what is not promised]
Lists of names | [what is not promised]
**Folders that strangers | races:test_the_folder_of_the_output_changes
They cannot make it write | races:test_the_output_in_the_making_goes_away
Names of | outputs:test_names_of_other_outputs_and_of_other_programs_stay outputs:test_what_a_living_run_writes_stays
**Other libraries.** | platform:test_nothing_is_imported_from_the_current_folder
Inputs are given to h5py | sentences:test_nothing_is_given_to_an_unpickler
**Secrets in a file.** | [what is not promised]
`inspect` and the alias record | [what is not promised]
A lock has digests | locks:test_no_string_of_a_checkpoint_is_in_a_lock
**Denial of service | [what is not promised]
If a file breaks | [how to report]
Anything else is | [how to report]
The smallest file | [how to report]
`make fuzz` has | [how to report]
fuzz: files | fuzz:test_a_short_run
the machine stops after | crashes:test_the_machine_stops_after_every_call
a request for memory | memory:test_a_buffer_cannot_be_had
kills: SIGKILL | signals:test_killed_at_any_moment
system calls that fail | calls:test_a_call_fails_from_then_on
In the fuzzed cases | fuzz:test_the_corpus
If torch, safetensors | fuzz:test_a_short_run
Of the 23,013 files | [figures of a long run]
MXNet's and Julia's | [figures of a long run]
A `.pt`, `.bin` | [what a pickle is]
A pickle is a program | security:test_other_ways_to_call
It runs pickles in its own | security:test_a_call_that_no_tensor_needs
A pickle of NumPy arrays | forms:test_arrays_of_objects_are_read
BSON.jl defines | bson:test_anonymous_functions_are_not_defined
In a TensorFlow bundle | tensorflow:test_paths_do_not_explode tensorflow:test_a_bundle_is_named_in_many_ways
**A file is unsafe if | security:test_a_call_that_no_tensor_needs
**calls** a function | security:test_other_ways_to_call
hands a function to | unread:test_what_is_called_by_those_who_use_it unread:test_what_known_functions_do_with_others
**names**, called or not | forms:test_names_in_truncated_pickles
changes the attributes | security:test_what_is_only_named_is_not_changed
makes a tensor by | security:test_a_call_that_a_tensor_needs
or if its Keras | forms:test_code_in_keras_files forms:test_code_of_older_keras
holds marshalled code | forms:test_a_pickle_in_a_configuration_of_keras forms:test_a_layer_of_another_model_is_unsafe
has Keras import | forms:test_names_in_keras_files forms:test_functions_of_keras_that_are_no_operations
Objects of unknown classes | security:test_classes_that_only_hold_data
command | [head of a table]
`inspect` | doors:test_each_command files:test_the_document_of_several_paths
`check` | check:test_an_unsafe_file_is_a_finding check:test_every_unsafe_file_is_a_result
`dedup`, `export` | doors:test_each_command
`paramtool.read` | doors:test_each_function
`paramtool.inspect` | doors:test_each_function
A file that is unsafe and also | codes:test_of_any_inputs doors:test_unsafe_comes_before_findings
With `--only` the whole | sentences:test_the_whole_file_counts_where_a_section_is_asked_for
A file without unsafe | pickles:test_text_is_no_pickle
`inspect --fail-on unsafe` | sentences:test_fail_on_unsafe_has_a_line_for_each_call
what `torch.save` itself | security:test_nothing_at_all folders:test_clean_folders_pass
containers and plain classes | pickles:test_what_holds_only_data
enums of transformers | security:test_a_member_of_an_enum_is_looked_up
Calling one of these | security:test_a_member_of_an_enum_is_looked_up
Calling it with anything | security:test_a_member_of_an_enum_is_looked_up
So `training_args.bin` | folders:test_clean_folders_pass
[Open a checkpoint | [another page]
Both options belong | doors:test_each_command doors:test_each_function
Neither runs anything | security:test_a_call_that_no_tensor_needs
`--allow-class mylib.schedules.Warmup` | doors:test_each_command
Repeatable. | doors:test_each_command
`--allow-class 'mylib.*'` | doors:test_a_class_that_holds_data_is_allowed_by_a_pattern
`inspect --fail-on unknown-class` | doors:test_a_class_that_holds_data_is_allowed_by_a_pattern
A pattern never allows | doors:test_each_command
`--allow-unknown`: continues | doors:test_each_command
`inspect` then exits with 0 | security:test_a_call_that_no_tensor_needs
A tensor that only a call | security:test_a_call_that_a_tensor_needs
Names in `os` | doors:test_what_can_never_be_allowed doors:test_a_pattern_never_reaches_what_is_dangerous
An allowed class is not | sentences:test_an_allowed_class_is_not_necessarily_writable
Before a file is refused | pickles:test_what_it_would_call_is_listed
Where the machine cannot | unread:test_no_prelude_hides_a_call unread:test_bytes_that_torch_loads_are_followed
Nor is it followed | unread:test_what_is_called_by_those_who_use_it_behind_what_no_machine_follows
Functions anywhere in what | forms:test_objects_that_call_when_they_are_built
Objects of torch's data pipes | forms:test_objects_that_call_when_they_are_built
Lines of text can | unread:test_words_are_no_pickle pickles:test_text_is_no_pickle
A pickle that begins | pickles:test_any_pickle_that_calls_is_found_in_any_protocol
Of any other data | unread:test_every_pickle_that_ends_too_soon
If they call something | pickles:test_what_it_would_call_is_listed
This covers plain pickles | pickles:test_any_pickle_that_calls_is_found_in_any_protocol
NumPy arrays of objects | forms:test_arrays_of_objects_that_call
What the reader of | folders:test_parts_of_distributed_checkpoints folders:test_a_pickle_in_bytes_that_no_tensor_claims
Limits: arrays that joblib | folders:test_what_is_not_scanned_to_its_end_is_named
Every member of a zip | zips:test_what_zipfile_reads_is_scanned
What asks for more | zips:test_what_a_limit_of_memory_stops_is_named
A damaged zip archive | folders:test_a_damaged_archive_is_searched_to_its_limit
A folder is its files. | trees:test_of_any_tree fires:test_what_fires_is_unsafe_and_nothing_else
Every command that is given | folders:test_a_folder_is_its_files passes:test_no_pickle_is_run_again
Links to files are followed | folders:test_links_to_files_are_followed
**A file of the model** | folders:test_an_unsafe_file_of_the_model_stops_every_command
If one is unsafe | folders:test_an_unsafe_file_of_the_model_stops_every_command
So it is where | paths:test_hdf5_with_data_in_other_files trees:test_a_path_out_of_a_folder_below_stops_every_command
`--weights FILE` takes | folders:test_what_is_chosen_stands_alone
**A neighbour** | folders:test_an_unsafe_neighbour_stops_no_command
`inspect` and `check` of | folders:test_a_folder_is_its_files codes:test_of_any_inputs
Other commands name | folders:test_an_unsafe_neighbour_is_named
Functions that return | folders:test_a_function_that_returns_tensors_names_no_neighbour
The exit code of those | codes:test_an_answer_stands_beside_an_unsafe_neighbour
The exit code stays | folders:test_what_is_not_scanned_to_its_end_is_named
A note names | folders:test_what_is_not_looked_at_is_named folders:test_a_link_says_where_it_leads
"""
TABLE = dict(line.split(" | ") for line in PAGE.strip().splitlines())


def sentences() -> list[str]:
    """Those of the page, bullets, and the first cells of rows; a heading is none."""
    found: list[str] = []
    block: list[str] = []
    for line in [*(ROOT / "docs" / "security.md").read_text().splitlines(), ""]:
        if line.startswith(("#", "|", "- ")) or not line.strip():
            found += re.split(r"(?<=[.:;])\s+(?=[A-Z`*(])", " ".join(" ".join(block).split()))
            block = []
        if line.startswith("|") and not set(line) <= set("|- "):
            found.append(line.strip("| ").split(" | ")[0])
        elif line.strip() and not line.startswith(("#", "|")):
            block.append(line.removeprefix("- "))
    return [one for one in found if one]


def test_every_sentence_has_its_test() -> None:
    """A new sentence of the page needs one; a sentence that went takes its row along."""
    of = {one: max((key for key in TABLE if one.startswith(key)), key=len, default="") for one in sentences()}
    assert [one for one, key in of.items() if not key] == []
    assert set(TABLE) - set(of.values()) == set()


@pytest.mark.parametrize("key", [key for key, shown in TABLE.items() if not shown.startswith("[")])
def test_the_tests_are_there(key: str) -> None:
    for one in TABLE[key].split():
        file, name = one.split(":")
        assert f"def {name}(" in (ROOT / "tests" / FILES[file]).read_text(), one
