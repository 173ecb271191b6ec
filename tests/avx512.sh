#!/usr/bin/env bash
# Runs a static program on a CPU with AVX-512: on this one, or else on one that Bochs emulates.
#   tests/avx512.sh PROGRAM [ARG...]
# EMULATE=1        emulate, whatever this CPU has
# EMULATE_SECONDS  limit of an emulated run (900)
# EMULATOR_CACHE   where the emulator is kept (~/.cache/convtbw-emulator, 70 MB)
# Exit status: the program's (128 + n: killed by signal n; 132: an instruction that the CPU lacks);
# 124: it ran longer than the limit; 125: the emulator could not be had, so that nothing ran.
#
# Bochs emulates a whole PC, at 65 million scalar or 4 million vector instructions a second. The
# program is the only one of a small Linux system, and the serial port carries its output. Debian's
# packages are unpacked into the cache: nothing is installed, and no rights are needed.
set -Eeuo pipefail

program=$(realpath "$1")
shift
limit=${EMULATE_SECONDS:-900}
cache=${EMULATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/convtbw-emulator}

say() { echo "avx512.sh: $*" >&2; }

native() {
  local feature
  for feature in avx512f avx512bw avx512dq avx512vl; do
    grep -qw "$feature" /proc/cpuinfo || return 1
  done
}

fetch_emulator() {
  mkdir -p "$(dirname "$cache")"
  fresh=$(mktemp -d "$cache.XXXXXX")  # becomes the cache only when it is complete
  mkdir -p "$fresh"/{root,apt/lists/partial,apt/archives/partial}
  apt() {  # lists and packages in folders of our own: no root, no lock, and nothing is too old
    timeout 600 "apt-$1" -qq -o Dir::State::Lists="$fresh/apt/lists" -o Dir::Cache="$fresh/apt" \
      -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 -o Acquire::http::Timeout=30 "${@:2}"
  }
  apt get update
  # Downloads only; with the libraries that this system lacks.
  apt get install --download-only --reinstall --yes --no-install-recommends \
    bochs bochs-term genisoimage cpio
  local kernel package
  kernel=$(apt cache depends linux-image-cloud-amd64 |
    awk '$1 == "Depends:" && /linux-image-/ { print $2; exit }')
  # Without what they depend on: single files of them are used.
  (cd "$fresh/apt/archives" && apt get download "$kernel" busybox-static isolinux syslinux-common)
  for package in "$fresh"/apt/archives/*.deb; do
    case $package in
      */linux-image-*) dpkg-deb --fsys-tarfile "$package" |
        tar -x -C "$fresh/root" --wildcards './boot/vmlinuz-*' ;;
      *) dpkg-deb -x "$package" "$fresh/root" ;;
    esac
  done
  mv "$fresh"/root/boot/vmlinuz-* "$fresh/root/boot/vmlinuz"
  mv -T "$fresh/root" "$cache" || [ -d "$cache" ]  # another run may have been faster
}

# Boot image: the kernel, and a file system in memory whose first process runs the program.
make_image() {
  local system=$work/system disc=$work/disc command
  mkdir -p "$system"/{bin,dev,proc,tmp} "$disc"
  cp "$cache/bin/busybox" "$system/bin"
  cp "$program" "$system/program"
  printf -v command '%q ' /program "$@"
  # stty: plain line ends, then wait until the port has sent everything.
  cat > "$system/init" <<END
#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t devtmpfs devtmpfs /dev
exec </dev/null >/dev/ttyS0 2>&1
busybox stty -F /dev/ttyS0 raw
echo @@BEGIN
$command
status=\$?
echo
echo "@@END \$status"
busybox stty -F /dev/ttyS0 raw
busybox poweroff -f
END
  chmod +x "$system/init"
  (cd "$system" && find . | "$cache/bin/cpio" --quiet -o -H newc) > "$disc/initrd"

  cp "$cache/usr/lib/ISOLINUX/isolinux.bin" "$cache/usr/lib/syslinux/modules/bios/ldlinux.c32" \
    "$cache/boot/vmlinuz" "$disc"
  # noxsaves, clearcpuid: Bochs 2.7 gives the compacted XSAVE area a wrong size, for which Linux
  # would switch AVX off altogether. The rest: less to boot, and no reboot after a panic.
  cat > "$disc/isolinux.cfg" <<END
default linux
label linux
  kernel /vmlinuz
  append initrd=/initrd console=ttyS0,115200 quiet noxsaves clearcpuid=xsavec,xsaves,pku,umip nopku \
nosmp nokaslr mitigations=off tsc=reliable no_timer_check random.trust_cpu=on cryptomgr.notests panic=-1
END
  "$cache/usr/bin/genisoimage" -quiet -o "$work/boot.iso" -b isolinux.bin -c boot.cat \
    -no-emul-boot -boot-load-size 4 -boot-info-table "$disc"
}

# Fails if it was killed at the limit. Bochs itself always ends with an error: the power went off.
run_bochs() {
  : > "$work/serial"
  # corei7_skylake_x: the model with F, CD, BW, DQ and VL and no further AVX-512. Devices that are
  # not needed are off: the sound card needs one of the host.
  cat > "$work/bochsrc" <<END
display_library: term
plugin_ctrl: unmapped=1, biosdev=1, serial=1, extfpuirq=1, speaker=0, parallel=0, gameport=0, \
iodebug=0, e1000=0, es1370=0, ne2k=0, sb16=0, usb_uhci=0, usb_ohci=0, usb_ehci=0, usb_xhci=0, voodoo=0
sound: driver=dummy
cpu: model=corei7_skylake_x, count=1, ips=50000000, reset_on_triple_fault=0
memory: guest=512, host=512
romimage: file=$cache/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=$cache/usr/share/vgabios/vgabios.bin
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
boot: cdrom
clock: sync=none, time0=utc
com1: enabled=1, mode=file, dev=$work/serial
log: $work/bochs.log
panic: action=fatal
END
  echo continue > "$work/debugger"  # Debian's Bochs starts in its debugger
  local lib=usr/lib/x86_64-linux-gnu status=0
  LTDL_LIBRARY_PATH=$cache/$lib/bochs/plugins LD_LIBRARY_PATH=$cache/$lib TERM=vt100 \
    timeout --foreground --signal=KILL "$limit" "$cache/usr/bin/bochs-bin" -q -f "$work/bochsrc" \
    -rc "$work/debugger" </dev/null >"$work/screen" 2>&1 || status=$?
  [ $status != 137 ]
}

# Of much output the beginning and the end.
shorten() {
  awk -v most=200 -v last=20 '
    { line = substr($0, 1, 400) }
    NR <= most { print line; next }
    { end[NR % last] = line }
    END {
      first = NR - last + 1 > most ? NR - last + 1 : most + 1
      if (first > most + 1) printf "... %d lines left out\n", first - most - 1
      for (i = first; i <= NR; ++i) print end[i % last]
    }'
}

if [ -z "${EMULATE:-}" ] && native; then
  say "this CPU has AVX-512"
  exec "$program" "$@"
fi

# Up to the boot, what fails is the emulator.
trap 'say "the emulator could not be had (line $LINENO)"; exit 125' ERR
work=$(mktemp -d)
fresh=
trap 'rm -rf "$work" ${fresh:+"$fresh"}' EXIT
if ! [ -d "$cache" ]; then
  say "fetching the emulator into $cache"
  fetch_emulator >&2
fi
make_image "$@"
trap - ERR

say "emulating"
in_time=true
run_bochs || in_time=false
sed -n '/^@@BEGIN$/,/^@@END [0-9]*$/p' "$work/serial" | sed '/^@@/d' | shorten
status=$(sed -n 's/^@@END \([0-9]*\)$/\1/p' "$work/serial")
if [ -n "$status" ]; then
  say "exit status $status after $SECONDS s, with boot"
  exit "$status"
elif ! grep -q '^@@BEGIN$' "$work/serial"; then
  say "the emulated machine did not boot"
  tail -n 5 "$work/serial" "$work/screen" | cut -c 1-400 >&2
  exit 125
elif $in_time; then
  say "the emulated machine stopped before the program's end"
  exit 1
else
  say "not done after $limit s"
  exit 124
fi
