#!/bin/sh
# Finds instructions beyond ARMv8.0 in the objects of an aarch64 build: only kernel sets that are
# chosen at run time may hold any.
#   baseline_instructions.sh OBJDUMP FOLDER
# OBJDUMP: of the cross compiler; FOLDER: where the object files of the build lie.
set -eu
objdump=$1
folder=$2

# Mnemonics of later versions: dot and matrix products, atomics, half-precision arithmetic, SVE.
beyond() {
    "$objdump" -d --no-show-raw-insn "$1" | awk -F '\t' '
        $2 ~ /^[us]*dot$|^bf(dot|mmla|mlal|cvt)|^(us|su|[us])mmla$|^fml[as]l2?$|^sqrdml[as]h$|^fc(add|mla)$/ ||
        $2 ~ /^(ld|st)(add|clr|eor|set|[us]max|[us]min)(a|l|al)?[bh]?$|^(swp|cas)p?(a|l|al)?[bh]?$|^ldap/ ||
        ($2 ~ /^f/ && $2 !~ /^fcvt/ && $3 ~ /(^|[ ,])(h[0-9]+|v[0-9]+\.[48]h)/) ||
        $3 ~ /(^|[ ,{])z[0-9]+\./ { print; found = 1 } END { exit !found }'
}

status=0
seen=0
for object in $(find "$folder" -name '*.o'); do
    seen=$((seen + 1))
    case $object in
    */quant_dotprod.cpp.o | */quant_i8mm.cpp.o)
        # The check must see these; and no function of theirs may stand for one of the baseline.
        beyond "$object" >/dev/null || { echo "$object: no instruction beyond ARMv8.0 seen"; status=1; }
        "${objdump%objdump}nm" "$object" | grep ' [WV] ' && { echo "$object: shared functions"; status=1; }
        ;;
    *)
        if beyond "$object"; then
            echo "$object: instructions beyond ARMv8.0"
            status=1
        fi
        ;;
    esac
done
echo "$seen objects"
test "$seen" -gt 2
exit $status
