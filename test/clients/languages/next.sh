#!/bin/bash
# next.sh WAY PATH N SIZE: reads PATH N times and prints what it got.
set -eu -o pipefail
path=$2 n=$3 size=$4

dd() { command dd if="$path" bs="$size" count=1 status=none; }
dd_blocks() { command dd if="$path" bs=512 status=none; }
cat() { command cat "$path"; }
cp() {
	copy=$(mktemp)
	trap 'rm -f "$copy"' EXIT
	command cp "$path" "$copy"
	command cat "$copy"
}
head() { command head -c "$size" "$path"; }
tail() { command tail -c +1 "$path"; }
od() { command od -An -v -t x1 "$path" | perl -ne 's/\s//g; print pack "H*", $_'; }
base64() { command base64 "$path" | command base64 -d; }
redirect() { command cat <"$path"; }

for ((i = 0; i < n; i++)); do
	"$1"
done
