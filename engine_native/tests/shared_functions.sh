#!/bin/sh
# Finds functions in the objects of kernel sets that the linker may take for those of other files:
# compiled for newer instructions, one of them in place of the baseline's ends older processors.
#   shared_functions.sh NM FOLDER PATTERN
# PATTERN: of the names of the object files, as for find.
set -eu
objects=$(find "$2" -name "$3")
test -n "$objects" || { echo "no object named $3 in $2"; exit 2; }
status=0
for object in $objects; do
    if "$1" -C "$object" | grep ' [WV] '; then
        echo "$object: functions that other files may share"
        status=1
    fi
done
exit $status
