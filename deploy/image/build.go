package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the user and group that the image runs as unless the container says otherwise. The
// proxy and the planner need no more rights; an agent's pod asks for root.
const user = "65532"

// image is a platform's image and the list of what is in its binary.
type image struct {
	platform v1.Platform
	image    v1.Image
	sbom     []byte // CycloneDX, JSON
	modules  int
}

// machines are the processors for which images are made.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkBinary returns an error for a binary that would not start in an image without any
// library.
func checkBinary(binary []byte, p v1.Platform) error {
	f, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return fmt.Errorf("no ELF binary: %w", err)
	}
	want, known := machines[p.Architecture]
	switch {
	case !known || p.OS != "linux":
		return fmt.Errorf("platform %s: images are made for linux/amd64 and linux/arm64", p)
	case f.Machine != want:
		return fmt.Errorf("built for %s, not for %s", f.Machine, p)
	}
	// An interpreter is the dynamic linker, which the image does not have.
	for _, section := range f.Progs {
		if section.Type == elf.PT_INTERP {
			return fmt.Errorf("dynamically linked; build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// build makes an image for each program: a layer of the few files that any process expects, and
// one with the program. All images share the first layer.
func build(programs []program, version string, made v1.Time) ([]image, error) {
	base, err := layer(made.Time, []entry{
		{name: "etc/", mode: 0o755}, {name: "tmp/", mode: 0o1777}, {name: "run/", mode: 0o755}, {name: "run/psidecar/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, body: []byte("root:x:0:0:root:/:/none\npsidecar:x:" + user + ":" + user + ":psidecar:/:/none\n")},
		{name: "etc/group", mode: 0o644, body: []byte("root:x:0:\npsidecar:x:" + user + ":\n")},
	})
	if err != nil {
		return nil, err
	}
	images := make([]image, 0, len(programs))
	for _, p := range programs {
		binary, err := layer(made.Time, []entry{{name: "psidecar", mode: 0o755, body: p.binary}})
		if err != nil {
			return nil, err
		}
		i, err := assemble(p.platform, version, made, base, binary)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", p.platform, err)
		}
		sbom, modules, err := billOfMaterials(p, version)
		if err != nil {
			return nil, err
		}
		images = append(images, image{p.platform, i, sbom, modules})
	}
	return images, nil
}

// assemble puts layers together: the base files, then the program.
func assemble(p v1.Platform, version string, made v1.Time, layers ...v1.Layer) (v1.Image, error) {
	i := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for n, l := range layers {
		var err error
		i, err = mutate.Append(i, mutate.Addendum{Layer: l, History: v1.History{
			Author: "psidecar", Created: made, CreatedBy: []string{"base files", "psidecar " + version}[n]}})
		if err != nil {
			return nil, err
		}
	}
	config, err := i.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created, config.OS, config.Architecture = made, p.OS, p.Architecture
	config.Config = v1.Config{
		Entrypoint: []string{"/psidecar"}, User: user + ":" + user, WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "psidecar",
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(i, config)
}

// entry is a file of a layer, or a folder if its name ends in a slash.
type entry struct {
	name string
	mode int64
	body []byte
}

// layer packs entries, in their order and with one time, into a compressed layer. Nothing of
// this machine gets into it.
func layer(made time.Time, entries []entry) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.body)), ModTime: made, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
		if e.name[len(e.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("layer: %s: %w", e.name, err)
		}
		if _, err := w.Write(e.body); err != nil {
			return nil, fmt.Errorf("layer: %s: %w", e.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	content := b.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(9))
}

// compressed returns the bytes that a registry stores and a node pulls.
func compressed(i v1.Image) (int64, error) {
	m, err := i.Manifest()
	if err != nil {
		return 0, err
	}
	total := m.Config.Size
	for _, l := range m.Layers {
		total += l.Size
	}
	return total, nil
}
