package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/psidecar/psidecar/test/require"
)

// smallProgram builds this command itself for an architecture: a static Go binary with modules,
// that is smaller than psidecar.
func smallProgram(t *testing.T, arch string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program-"+arch)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// TestImageHoldsTheProgramAndItsBill reads the layout back as a registry's client does: the
// index has an image with the program in it, and the bill of materials names that image as its
// subject.
func TestImageHoldsTheProgramAndItsBill(t *testing.T) {
	binary := smallProgram(t, runtime.GOARCH)
	dir := filepath.Join(t.TempDir(), "image")
	var out bytes.Buffer
	require.NoError(t, run([]string{"--out", dir, "--version", "v1.2.3+x", "linux/" + runtime.GOARCH + "=" + binary}, &out))
	path := require.Value(layout.FromPath(filepath.Join(dir, "oci")))(t)
	top := require.Value(path.ImageIndex())(t)
	manifest := require.Value(top.IndexManifest())(t)
	if len(manifest.Manifests) != 2 {
		t.Fatalf("%d manifests in the layout, want the index and a bill of materials", len(manifest.Manifests))
	}
	index := require.Value(top.ImageIndex(manifest.Manifests[0].Digest))(t)
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	images := require.Value(index.IndexManifest())(t)
	if p := images.Manifests[0].Platform; p == nil || p.Architecture != runtime.GOARCH {
		t.Errorf("platform %v, want %s", p, runtime.GOARCH)
	}
	i := require.Value(index.Image(images.Manifests[0].Digest))(t)
	root := t.TempDir()
	extract(t, mutate.Extract(i), root)
	want, _ := os.ReadFile(binary)
	got, err := os.ReadFile(filepath.Join(root, "psidecar"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the program in the image differs from the one given (%v)", err)
	}

	bill := require.Value(path.Image(manifest.Manifests[1].Digest))(t)
	m := require.Value(bill.Manifest())(t)
	if m.Subject == nil || m.Subject.Digest != images.Manifests[0].Digest {
		t.Errorf("the bill of materials is of %v, want of the image", m.Subject)
	}
	checkBill(t, filepath.Join(dir, "psidecar-linux-"+runtime.GOARCH+".cdx.json"))
}

// checkBill checks that a file is a bill of materials with a module that the program is built
// from.
func checkBill(t *testing.T, path string) {
	t.Helper()
	text := require.Value(os.ReadFile(path))(t)
	var bill struct {
		BomFormat  string
		Components []struct{ Name, Version, Purl string }
	}
	require.NoError(t, json.Unmarshal(text, &bill))
	found := false
	for _, c := range bill.Components {
		found = found || c.Name == "github.com/google/go-containerregistry" && strings.HasPrefix(c.Purl, "pkg:golang/github.com/google/go-containerregistry@v")
	}
	if bill.BomFormat != "CycloneDX" || !found {
		t.Errorf("bill of materials %s lacks a module that the program is built of", bill.BomFormat)
	}
}

// TestProgramStartsInItsImage runs the program with the image as its root, as the image's user.
func TestProgramStartsInItsImage(t *testing.T) {
	require.Root(t)
	programs := require.Value(readProgram("linux/" + runtime.GOARCH + "=" + smallProgram(t, runtime.GOARCH)))(t)
	made := require.Value(created())(t)
	images := require.Value(build([]program{programs}, "test", made))(t)
	root := t.TempDir()
	extract(t, mutate.Extract(images[0].image), root)
	out, err := exec.CommandContext(t.Context(), "chroot", "--userspec="+user+":"+user, root, "/psidecar").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "no binaries given") {
		t.Errorf("in its image the program says %q (%v)", out, err)
	}
}

// TestSameInputSameImage: two builds have the same digest.
func TestSameInputSameImage(t *testing.T) {
	p := require.Value(readProgram("linux/" + runtime.GOARCH + "=" + smallProgram(t, runtime.GOARCH)))(t)
	made := require.Value(created())(t)
	digest := func() string {
		images := require.Value(build([]program{p}, "test", made))(t)
		d := require.Value(images[0].image.Digest())(t)
		return d.String()
	}
	if a, b := digest(), digest(); a != b {
		t.Errorf("two builds of the same program: %s and %s", a, b)
	}
}

// TestRefusals: what is no static program for its platform is refused.
func TestRefusals(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("no program"), 0o755))
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	self := require.Value(os.Executable())(t)
	for _, c := range []struct{ arg, want string }{
		{"linux/amd64", "want OS/ARCH=FILE"},
		{"linux/amd64=" + text, "no ELF binary"},
		{"linux/" + other + "=" + self, "built for"},
		{"linux/amd64=/does/not/exist", "no such file"},
	} {
		if _, err := readProgram(c.arg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.arg, err, c.want)
		}
	}
	if err := run(nil, io.Discard); err == nil {
		t.Error("no binaries, no error")
	}
}

// TestTooLarge: an image larger than --max-bytes is an error.
func TestTooLarge(t *testing.T) {
	arg := "linux/" + runtime.GOARCH + "=" + smallProgram(t, runtime.GOARCH)
	for _, c := range []struct {
		most string
		ok   bool
	}{{"100000", false}, {"40000000", true}, {"0", true}} {
		err := run([]string{"--out", filepath.Join(t.TempDir(), "image"), "--max-bytes", c.most, arg}, io.Discard)
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "--max-bytes allows "+c.most) {
			t.Errorf("at most %s bytes: %v", c.most, err)
		}
	}
}

// extract unpacks a tar file and closes it.
func extract(t *testing.T, from io.ReadCloser, root string) {
	t.Helper()
	defer from.Close()
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		path := filepath.Join(root, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var f *os.File
			if f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY, os.FileMode(h.Mode)); err == nil {
				_, err = io.Copy(f, r)
				err = errors.Join(err, f.Close())
			}
		}
		require.NoError(t, err)
	}
}
