package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// sbomType is the media type of a bill of materials.
const sbomType = "application/vnd.cyclonedx+json"

// writeLayout writes an OCI image layout to a new folder: an index of the images, and as
// referrers of the images their bills of materials.
func writeLayout(dir string, images []image) error {
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var referrers []v1.Image
	for _, i := range images {
		platform := i.platform
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.image, Descriptor: v1.Descriptor{Platform: &platform}})
		r, err := referrer(i)
		if err != nil {
			return err
		}
		referrers = append(referrers, r)
	}
	// The index of the layout has the image index and the bills. Tools push the first by its
	// media type.
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("image layout in %s: %w", dir, err)
	}
	if err := path.AppendIndex(index); err != nil {
		return fmt.Errorf("image layout in %s: %w", dir, err)
	}
	for _, r := range referrers {
		if err := path.AppendImage(r); err != nil {
			return fmt.Errorf("image layout in %s: bill of materials: %w", dir, err)
		}
	}
	return nil
}

// referrer returns an OCI artifact that holds an image's bill of materials and names the image
// as its subject, by which registries and scanners find it.
func referrer(i image) (v1.Image, error) {
	subject, err := descriptor(i.image)
	if err != nil {
		return nil, err
	}
	a := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), sbomType)
	if a, err = mutate.AppendLayers(a, static.NewLayer(i.sbom, sbomType)); err != nil {
		return nil, fmt.Errorf("bill of materials: %w", err)
	}
	withSubject, ok := mutate.Subject(a, *subject).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("bill of materials: the image has no subject")
	}
	return withSubject, nil
}

// descriptor returns the reference by which a manifest names an image.
func descriptor(i v1.Image) (*v1.Descriptor, error) {
	digest, err := i.Digest()
	if err != nil {
		return nil, err
	}
	size, err := i.Size()
	if err != nil {
		return nil, err
	}
	return &v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: digest, Size: size}, nil
}

// writeFiles writes what engines load (docker load, ctr image import) and the bill of materials
// as files.
func writeFiles(dir, repository, version string, i image) error {
	suffix := i.platform.OS + "-" + i.platform.Architecture
	tag, err := name.NewTag(repository + ":" + tagText(version))
	if err != nil {
		return fmt.Errorf("--name %s, --version %s: %w", repository, version, err)
	}
	if err := tarball.WriteToFile(filepath.Join(dir, "psidecar-"+suffix+".tar"), tag, i.image); err != nil {
		return fmt.Errorf("tar file for %s: %w", i.platform, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "psidecar-"+suffix+".cdx.json"), i.sbom, 0o644); err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	return nil
}

// tagText returns a version with everything replaced that a tag cannot hold, such as the + of
// semantic versions.
func tagText(version string) string {
	b := []byte(version)
	for i, c := range b {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-', c == '_':
		default:
			b[i] = '-'
		}
	}
	return string(b)
}
