// Package imports keeps the directions in which packages import each other, which
// ARCHITECTURE.md describes.
package imports

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

const module = "github.com/psidecar/psidecar/"

// wire is what a job's bytes are read with: it knows nothing else of ours.
var wire = []string{"internal/wire/..."}

// api is how agent, proxy and planner talk to each other.
var api = []string{"planner/api", "planner/api/measure"}

// allowed is what packages may import of other areas than their own. The longest
// folder that a package is in counts; "x/..." is x and all below it.
var allowed = map[string][]string{
	"bpf":                  {},
	"internal/wire/pslite": wire, "internal/wire/zmtp": {},
	"internal": api,
	"internal/demo": {
		"internal/...",
		"planner/dataset",    // data to train on
		"proxy/codec/values", // rules of the last phase
	},
	"internal/page": append([]string{"internal/chart", "internal/handshake", "internal/health", "internal/wire/pslite"}, api...),
	"planner/api":   api,
	"planner":       {"internal/..."},
	"agent":         append([]string{"bpf/...", "internal/..."}, api...),
	"proxy":         append([]string{"internal/..."}, api...),
	"internal/client": append([]string{
		"bpf", // what a host lacks, for a bundle
		"internal/...",
		"planner/fleet",      // what a trial of codecs comes to
		"proxy/codec/values", // rules are given
	}, api...),
	"deploy": {},
	"cmd":    {"agent/...", "bpf/...", "internal/...", "planner/...", "proxy/..."},
	"test":   {"agent/...", "bpf/...", "cmd/...", "deploy/...", "internal/...", "planner/...", "proxy/..."},
}

// areaOf returns the key of allowed that rules a package.
func areaOf(pkg string) string {
	for folder := pkg; folder != "."; folder = path.Dir(folder) {
		if _, ok := allowed[folder]; ok {
			return folder
		}
	}
	return ""
}

func within(pkg, pattern string) bool {
	folder, all := strings.CutSuffix(pattern, "/...")
	return pkg == folder || all && strings.HasPrefix(pkg, folder+"/")
}

// mayImport reports whether a file of the package from may import the package to.
// Tests may use what is for tests, and the packages that they play the other side of.
func mayImport(from, to string, isTest bool) bool {
	area := areaOf(from)
	switch {
	case area == "":
		return false
	case isTest:
		return !within(to, "cmd/...") || area == "cmd" || area == "test"
	case area == areaOf(to), slices.ContainsFunc(allowed[area], func(p string) bool { return within(to, p) }):
		return true
	}
	// A part of an area that has its own rule is still of the area.
	outer := areaOf(path.Dir(areaOf(to)))
	return outer == area
}

// violations returns the imports below a folder that are not allowed.
func violations(root string) (all []string, files int, err error) {
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); name != root && (strings.HasPrefix(n, ".") || n == "node_modules" || n == "testdata" || n == "kubernetes" && strings.HasSuffix(name, "test/kubernetes")) {
				return filepath.SkipDir // test/kubernetes is a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		files++
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		from := filepath.ToSlash(filepath.Dir(relative))
		for _, spec := range file.Imports {
			text, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if to, ours := strings.CutPrefix(text, module); ours && !mayImport(from, to, strings.HasSuffix(name, "_test.go")) {
				all = append(all, fmt.Sprintf("%s imports %s", filepath.ToSlash(relative), to))
			}
		}
		return nil
	})
	return all, files, err
}

func TestImportsGoOneWay(t *testing.T) {
	all, files, err := violations("../..")
	require.NoError(t, err)
	if files < 500 {
		t.Fatalf("only %d files were looked at", files)
	}
	for _, v := range all {
		t.Errorf("%s, which its area may not: see ARCHITECTURE.md, and allowed in this file", v)
	}
}

func TestViolationsAreFound(t *testing.T) {
	for name, tc := range map[string]struct {
		file, imports string
		found         bool
	}{
		"the planner an agent":           {"planner/x/x.go", "agent/counts", true},
		"an agent the planner":           {"agent/x.go", "planner/live", true},
		"an agent the planner's API":     {"agent/x.go", "planner/api", false},
		"the planner its own API":        {"planner/x.go", "planner/api", false},
		"the API the planner":            {"planner/api/x.go", "planner/plans", true},
		"a proxy the wire":               {"proxy/x/x.go", "internal/wire/pslite", false},
		"the wire a proxy":               {"internal/wire/pslite/x.go", "proxy/relay", true},
		"a product package the tests'":   {"internal/x.go", "test/require", true},
		"a command the tests'":           {"cmd/psidecar/x.go", "test/hoststest", true},
		"a test the tests'":              {"internal/x_test.go", "test/require", false},
		"a product package a command":    {"agent/x.go", "cmd/psjob/kv", true},
		"a test of a product a command":  {"agent/x_test.go", "cmd/psjob/kv", true},
		"a test of all a command":        {"test/x/x_test.go", "cmd/psjob/kv", false},
		"a command its own":              {"cmd/psidecar/x.go", "cmd/psjob/kv", false},
		"what is in no area that is one": {"other/x.go", "bpf", true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, tc.file)
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
			require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "package x\n\nimport _ %q\n", module+tc.imports), 0o600))
			all, files, err := violations(root)
			if err != nil || files != 1 || (len(all) == 1) != tc.found {
				t.Errorf("found %q in %d files, %v", all, files, err)
			}
		})
	}
}
