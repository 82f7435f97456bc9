package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"

	"github.com/psidecar/psidecar/test/require"
)

// parts are the files from which these tests make releases.
var parts = map[string]string{
	"src/CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n- New.\n\n## 1.2.0 (a date)\n\n### Added\n- This.\n\n## 1.1.0\n\n", "src/LICENSE": "licence",
	"src/deploy/systemd/psidecar-agent.service": "[Unit]", "src/deploy/systemd/config.yaml": "insecure: true",
	"amd64/psidecar": "program", "amd64/psjob": "job", "arm64/psidecar": "other program", "arm64/psjob": "other job",
	"man/psidecar.1": ".TH", "man/psidecar-agent.1": ".TH",
	"completions/psidecar.bash": "complete", "completions/_psidecar": "#compdef", "completions/psidecar.fish": "complete",
	"packages/psidecar_1.2.0_amd64.deb": "deb", "packages/psidecar-1.2.0.x86_64.rpm": "rpm",
	"image/oci/index.json": "{}", "image/oci/blobs/sha256/00": "blob",
	"image/psidecar-linux-amd64.tar": "image", "image/psidecar-linux-amd64.cdx.json": "{}",
	"image/psidecar-linux-arm64.tar": "other image", "image/psidecar-linux-arm64.cdx.json": "{}",
}

// place writes the parts, last modified at a time, and returns the command line that makes a
// release of them.
func place(t *testing.T, version string, written time.Time) (dir string, args []string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range parts {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, written, written)))
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	return dir, []string{"--out", at("out"), "--version", version, "--root", at("src"), "--image", at("image"), "--man", at("man"),
		"--completions", at("completions"), "--packages", at("packages"), "linux/amd64=" + at("amd64"), "linux/arm64=" + at("arm64")}
}

// fixed returns an environment.
func fixed(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

// read returns the files of a folder by their names.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := require.Value(os.ReadDir(dir))(t)
	all := map[string]string{}
	for _, f := range files {
		text := require.Value(os.ReadFile(filepath.Join(dir, f.Name())))(t)
		all[f.Name()] = string(text)
	}
	return all
}

// writeKey writes a new secret key, encrypted if there is a password.
func writeKey(t *testing.T, password string) (path string, public minisign.PublicKey) {
	t.Helper()
	public, secret, err := minisign.GenerateKey(rand.Reader)
	require.NoError(t, err)
	text, err := secret.MarshalText()
	if password != "" {
		text, err = minisign.EncryptKey(password, secret)
	}
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path, public
}

// TestRelease: a release has all its files, in sums that hold, signed.
func TestRelease(t *testing.T) {
	key, public := writeKey(t, "")
	dir, args := place(t, "v1.2.0", time.Now())
	var said bytes.Buffer
	require.NoError(t, run(append([]string{"--key", key}, args...), fixed(nil), &said))
	files := read(t, filepath.Join(dir, "out"))
	want := []string{"SHA256SUMS", "SHA256SUMS.minisig", "psidecar-1.2.0.x86_64.rpm", "psidecar-v1.2.0-changes.md", "psidecar-v1.2.0-image-linux-amd64.tar", "psidecar-v1.2.0-image-linux-arm64.tar", "psidecar-v1.2.0-image.oci.tar",
		"psidecar-v1.2.0-linux-amd64.cdx.json", "psidecar-v1.2.0-linux-amd64.tar.gz", "psidecar-v1.2.0-linux-arm64.cdx.json", "psidecar-v1.2.0-linux-arm64.tar.gz", "psidecar_1.2.0_amd64.deb"}
	var got []string
	for name := range files {
		got = append(got, name)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("files %q, want %q", got, want)
	}
	var sums strings.Builder
	for _, name := range want[2:] {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256([]byte(files[name])), name)
	}
	if files["SHA256SUMS"] != sums.String() {
		t.Errorf("SHA256SUMS is\n%s\nwant\n%s", files["SHA256SUMS"], sums.String())
	}
	if !minisign.Verify(public, []byte(files["SHA256SUMS"]), []byte(files["SHA256SUMS.minisig"])) {
		t.Errorf("the signature does not hold: %s", files["SHA256SUMS.minisig"])
	}
	if minisign.Verify(public, []byte(files["SHA256SUMS"]+"x"), []byte(files["SHA256SUMS.minisig"])) {
		t.Error("the signature holds for another text")
	}
	if changes := files["psidecar-v1.2.0-changes.md"]; changes != "# psidecar v1.2.0\n\n### Added\n- This.\n" {
		t.Errorf("changes: %q", changes)
	}
	checkArchive(t, files["psidecar-v1.2.0-linux-arm64.tar.gz"])
}

// checkArchive checks names, modes and programs of the archive of a platform.
func checkArchive(t *testing.T, text string) {
	t.Helper()
	z := require.Value(gzip.NewReader(strings.NewReader(text)))(t)
	const top = "psidecar-v1.2.0-linux-arm64/"
	var got []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		body := require.Value(io.ReadAll(r))(t)
		got = append(got, strings.TrimPrefix(h.Name, top))
		if program := strings.HasPrefix(h.Name, top+"bin/"); program != (h.Mode == 0o755) || program && !strings.HasPrefix(string(body), "other ") {
			t.Errorf("%s has mode %o and holds %q", h.Name, h.Mode, body)
		}
	}
	want := []string{"CHANGELOG.md", "LICENSE", "bin/psidecar", "bin/psjob", "share/bash-completion/completions/psidecar", "share/fish/vendor_completions.d/psidecar.fish",
		"share/man/man1/psidecar-agent.1", "share/man/man1/psidecar.1", "share/psidecar/systemd/config.yaml", "share/psidecar/systemd/psidecar-agent.service", "share/zsh/site-functions/_psidecar"}
	if !slices.Equal(got, want) {
		t.Errorf("the archive has %q, want %q", got, want)
	}
}

// TestSameInputSameRelease: files of other times, elsewhere, give the same bytes, those of the
// signature included.
func TestSameInputSameRelease(t *testing.T) {
	key, _ := writeKey(t, "")
	environment := fixed(map[string]string{"SOURCE_DATE_EPOCH": "1700000000"})
	var releases []map[string]string
	for _, written := range []time.Time{time.Unix(1, 0), time.Unix(1800000000, 0)} {
		dir, args := place(t, "v1.2.0-5-gabcdef0", written)
		for range 2 { // the second replaces the first
			require.NoError(t, run(append([]string{"--key", key}, args...), environment, io.Discard))
		}
		releases = append(releases, read(t, filepath.Join(dir, "out")))
	}
	if len(releases[0]) != len(releases[1]) {
		t.Errorf("%d files, then %d", len(releases[0]), len(releases[1]))
	}
	for name, text := range releases[0] {
		if releases[1][name] != text {
			t.Errorf("%s differs", name)
		}
	}
}

// TestNotSigned: without a key a release says that it is not signed.
func TestNotSigned(t *testing.T) {
	dir, args := place(t, "v1.2.0", time.Now())
	var said bytes.Buffer
	require.NoError(t, run(args, fixed(nil), &said))
	if _, there := read(t, filepath.Join(dir, "out"))["SHA256SUMS.minisig"]; there || !strings.Contains(said.String(), "not signed") {
		t.Errorf("signed: %v; it says %s", there, said.String())
	}
}

// TestKeyWithPassword: a key with a password signs with the right one only. Each try takes a
// second and a GiB, as minisign means it to.
func TestKeyWithPassword(t *testing.T) {
	require.Time(t)
	key, public := writeKey(t, "secret")
	for password, want := range map[string]string{"": "set MINISIGN_PASSWORD", "another": "a wrong password", "secret": ""} {
		sign, err := signer(key, password)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("password %q: %v, want %q", password, err, want)
			}
			continue
		}
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, errors.Join(os.WriteFile(path, []byte("text"), 0o600), sign(path, "comment")))
		if signature, err := os.ReadFile(path + ".minisig"); err != nil || !minisign.Verify(public, []byte("text"), signature) {
			t.Errorf("the signature does not hold: %s %v", signature, err)
		}
	}
}

// TestNoRelease: what is missing or cannot be released is an error that says what to
// do, and a key that does not fit one before anything is written.
func TestNoRelease(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("no key"), 0o600))
	for _, tc := range []struct {
		name, version string
		args          []string // before the others
		without       string   // of the parts
		environment   map[string]string
		want          string
	}{
		{"changes that are not committed", "v1.2.0-dirty", nil, "", nil, "commit them"},
		{"a version that is a path", "../v1", nil, "", nil, "--version"},
		{"a version without changes", "v9.0.0", nil, "", nil, "no section ## 9.0.0"},
		{"a version with an empty section", "v1.1.0", nil, "", nil, "is empty"},
		{"a time that is none", "v1.2.0", nil, "", map[string]string{"SOURCE_DATE_EPOCH": "now"}, "SOURCE_DATE_EPOCH"},
		{"no key file", "v1.2.0", []string{"--key", "/does/not/exist"}, "", nil, "--key"},
		{"no key", "v1.2.0", []string{"--key", text}, "", nil, "no secret key"},
		{"no program", "v1.2.0", nil, "arm64/psjob", nil, "linux/arm64"},
		{"no image", "v1.2.0", nil, "image/psidecar-linux-arm64.tar", nil, "make image writes it"},
		{"no layout", "v1.2.0", nil, "image/oci", nil, "make image writes it"},
		{"no manual pages", "v1.2.0", nil, "man", nil, "make man writes them"},
		{"no completions", "v1.2.0", nil, "completions/_psidecar", nil, "make completions writes them"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, args := place(t, tc.version, time.Now())
			if tc.without != "" {
				require.NoError(t, os.RemoveAll(filepath.Join(dir, tc.without)))
			}
			err := run(append(tc.args, args...), fixed(tc.environment), io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "out", "SHA256SUMS")); err == nil {
				t.Error("there are sums all the same")
			}
		})
	}
	for _, arg := range []string{"linux/amd64", "linux=a", "linux/../x=a", "linux/amd64="} {
		if err := run([]string{arg}, fixed(nil), io.Discard); err == nil || !strings.Contains(err.Error(), "want OS/ARCH=FOLDER") {
			t.Errorf("%s: %v", arg, err)
		}
	}
}
