"""Structure-aware fuzzing: `make fuzz`, a short run and the corpus of what it found in `make test`.

mutators/     bytes and a Random to bytes, one module for each kind of file
seeds.py      the files that are mutated: fixtures, contract cases, and what paramtool makes of them
cases.py      case number n of a run: files and commands, from the number alone
watch.py      the audit hook and the limits that each case runs under
judges.py     what every run of a command keeps to, and what other libraries read
runner.py     one warm process that forks children; each runs a batch of cases
minimise.py   a finding made small
guided.py     readers fuzzed by atheris, which sees the branches that they take: `make fuzz-guided`
"""
