#!/usr/bin/env bash
# The structure of the code: which crate may know which, what a crate below `exec` may not name, and how long texts may be.
#     tests/house.sh            prints what does not hold; nothing, and 0, if all does
#     tests/house.sh --write    writes the arrows as they are to tests/house.txt, to be reviewed
set -u
cd "$(dirname "$0")/.." || exit 2

arrows() {
    local c
    for c in crates/*/; do
        printf '%s:' "$(basename "$c")"
        sed -n '/^\[dependencies\]/,/^\[dev/p' "$c/Cargo.toml" | grep -o '\.\./[a-z]*' | cut -c4- | sort | tr '\n' ' ' |
            sed 's/^/ /;s/ $//'
        echo
    done
}

if [ "${1:-}" = --write ]; then
    arrows >tests/house.txt
    exit
fi

bad=0
fail() {
    echo "$1"
    bad=1
}

# The rooms below `exec` that are crates of their own.
below() { for room in config observe pubsub work park memory rows pages scripts durable; do [ -d "crates/$room" ] && echo "crates/$room/src"; done; }

changed=$(arrows | diff tests/house.txt -) || fail "Arrows between crates differ from tests/house.txt:
$changed"

known=$(grep -rnE '&(mut )?(Arc<)?(exec::)?(Server|Local)\b|exec::' $(below) --include=*.rs) &&
    fail "A crate below exec knows the server or a loop:
$known"

told=$(grep -rnE 'server\.(after|tell|log_effect)\(' $(below) --include=*.rs) &&
    fail "A crate below exec tells of a change, instead of giving it back:
$told"

letters=$(grep -rnE '\b(Session|Mail)\b' crates/{work,scripts}/src --include=*.rs) &&
    fail "Long work or scripts know a session, or letters of others:
$letters"

at_most() { # what limit figure
    [ "$3" -le "$2" ] || fail "$1: $3, at most $2"
}
at_most "Bytes of README.md" 9000 "$(wc -c <README.md)"
at_most "Bytes of ARCHITECTURE.md" 18000 "$(wc -c <ARCHITECTURE.md)"
at_most "Letters that net opens" 6 "$(grep -c 'Mail::' crates/net/src/event_loop.rs)"
at_most "Lines of crate exec" 11450 "$(find crates/exec/src -name '*.rs' -exec cat {} + | wc -l)"
at_most "Comment lines that do not begin with their subject" 0 \
    "$(grep -rnE '^ *//[/!]? ?(Who|Whoever|What|Of|Those|He|His) ' crates --include=*.rs | wc -l)"
at_most "Comparisons of a command's name outside its row" 0 \
    "$(grep -rnE 'command\.name (==|!=)|matches!\((away\.)?command\.name|&command\.name' crates/{exec,work,scripts,rows}/src | wc -l)"
at_most "Bytes of CHANGELOG.md" 10240 "$(wc -c <CHANGELOG.md)"
# No text of a server becomes markup or code in the console.
markup=$(grep -nE 'innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|document\.write|\beval\(|new Function|javascript:' console/src/*) &&
    fail "The console makes markup or code of texts:
$markup"
# Circles of files, long functions, wide comments, unused dependencies, names in documents.
more=$(tests/house.py) || fail "$more"
exit $bad
