#!/usr/bin/env bash
# Makes a Debian package of what scripts/release.sh has put into a folder.
# Usage: scripts/debian.sh [DIST] [TARGET]; DIST is dist/, TARGET the host's triple, unless said otherwise.
# The same folder at the same commit gives the same bytes. DEBFULLNAME and DEBEMAIL name the maintainer.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=${1:-dist}
target=${2:-$(rustc -vV | sed -n 's/^host: //p')}
case ${target%%-*} in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    i686) arch=i386 ;;
    riscv64*) arch=riscv64 ;;
    s390x) arch=s390x ;;
    *) echo "no Debian architecture for $target" >&2; exit 1 ;;
esac
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
umask 022
chmod 755 "$root"
share=$root/usr/share
mkdir -p "$root/DEBIAN" "$root/usr/bin" "$share/man/man1" "$share/doc/gguf-foundry" \
    "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
for bin in gguf-convert gguf-quantize gguf-verify gguf-inspect; do
    install -m 755 "$dist/$bin" "$root/usr/bin/$bin"
    install -m 644 "$dist/completions/$bin.bash" "$share/bash-completion/completions/$bin"
    install -m 644 "$dist/completions/_$bin" "$share/zsh/vendor-completions/_$bin"
    install -m 644 "$dist/completions/$bin.fish" "$share/fish/vendor_completions.d/$bin.fish"
done
for page in "$dist"/man/*.1; do
    gzip -9nc "$page" > "$share/man/man1/$(basename "$page").gz"
done
gzip -9nc CHANGELOG.md > "$share/doc/gguf-foundry/changelog.gz"
install -m 644 README.md "$dist/json.md" "$share/doc/gguf-foundry/"
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
    printf 'Upstream-Name: gguf-foundry\n\nFiles: *\nCopyright: the gguf-foundry contributors\nLicense: MIT or Apache-2.0\n\n'
    printf 'License: MIT\n'
    sed 's/^$/./; s/^/ /' LICENSE-MIT
    printf '\nLicense: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n'
} > "$share/doc/gguf-foundry/copyright"
# Static programs depend on nothing.
cat > "$root/DEBIAN/control" <<CONTROL
Package: gguf-foundry
Version: $version
Architecture: $arch
Maintainer: ${DEBFULLNAME:-gguf-foundry contributors} <${DEBEMAIL:-gguf-foundry@localhost}>
Installed-Size: $(du -sk --apparent-size --exclude DEBIAN "$root" | cut -f1)
Section: utils
Priority: optional
Description: convert, quantize, verify and inspect GGUF model files
 Four static programs that turn checkpoints of language models into GGUF files,
 quantize them to the bytes that llama.cpp writes, say whether the result works,
 and look into files and change them.
CONTROL
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum > DEBIAN/md5sums)
find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
deb=$dist/gguf-foundry_${version}_$arch.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$deb" > /dev/null
echo "$deb"
