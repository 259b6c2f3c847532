#!/bin/sh
# Writes an image archive to standard output: a web server that answers with the name of its Pod, made of this machine's
# busybox (Debian: apt install busybox) and the libraries that it needs. Nothing is pulled from a registry.
#
#   packaging/web-image.sh [NAME] >web.tar
set -eu

name=${1:-sampan.test/web:1}
busybox=${BUSYBOX:-$(command -v busybox)} || {
    echo "web-image: there is no busybox here; on Debian: apt install busybox" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/bin" "$root/etc" "$root/tmp" "$root/www" "$root/proc" "$root/sys" "$root/dev"
cp -L "$busybox" "$root/bin/busybox"
"$busybox" --list | while read -r applet; do
    [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
done
# A static one needs none, and says so with an error.
{ ldd "$busybox" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root${library%/*}"
    cp -L "$library" "$root$library"
done
tar --owner=0 --group=0 -C "$root" -cf "$work/layer.tar" .
digest=$(sha256sum <"$work/layer.tar" | cut -d' ' -f1)
cat >"$work/config.json" <<JSON
{"os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]},
 "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh", "-c", "hostname >/www/index.html; exec httpd -f -h /www -p 8080"]}}
JSON
printf '[{"Config": "config.json", "RepoTags": ["%s"], "Layers": ["layer.tar"]}]' "$name" >"$work/manifest.json"
tar --owner=0 --group=0 -C "$work" -cf - manifest.json config.json layer.tar
