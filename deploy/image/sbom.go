package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials lists, in CycloneDX, the modules that are linked into a program, as the
// program itself says (package debug/buildinfo), and returns how many there are, Go's standard
// library included. It has no time and no random serial number, which would make two builds
// differ.
func billOfMaterials(p program, version string) ([]byte, int, error) {
	info, err := buildinfo.Read(bytes.NewReader(p.binary))
	if err != nil {
		return nil, 0, fmt.Errorf("%s: reading the modules that it is built of: %w", p.path, err)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{
		BOMRef: "psidecar", Type: cyclonedx.ComponentTypeApplication, Name: "psidecar", Version: version,
		PackageURL: packageURL(info.Main.Path, version) + "?goos=" + p.platform.OS + "&goarch=" + p.platform.Architecture,
		Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
	}}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	goVersion, _, _ = strings.Cut(goVersion, " ")
	components := []cyclonedx.Component{{
		BOMRef: "std", Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion, PackageURL: packageURL("std", goVersion),
	}}
	for _, m := range info.Deps {
		// What is linked is the replacement.
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, cyclonedx.Component{
			BOMRef: m.Path + "@" + m.Version, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version,
			PackageURL: packageURL(m.Path, m.Version),
			Properties: &[]cyclonedx.Property{{Name: "go:module:sum", Value: m.Sum}},
		})
	}
	refs := make([]string, len(components))
	for i := range components {
		refs[i] = components[i].BOMRef
	}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: "psidecar", Dependencies: &refs}}
	var out bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, 0, fmt.Errorf("writing the bill of materials: %w", err)
	}
	return out.Bytes(), len(components), nil
}

// packageURL returns the name by which scanners look a module up.
func packageURL(path, version string) string {
	return "pkg:golang/" + strings.ReplaceAll(path, "+", "%2B") + "@" + strings.ReplaceAll(version, "+", "%2B")
}
