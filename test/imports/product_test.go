package imports

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// depsOf returns, by import path, what go list's template says of the packages that patterns
// are built of, as make builds them.
func depsOf(t *testing.T, format string, patterns ...string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-tags=grpcnotrace", "-deps", "-f", "{{.ImportPath}}\t" + format}, patterns...)...)
	cmd.Dir = "../.."
	out := require.Value(cmd.Output())(t)
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		pkg, said, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		all[pkg] = said
	}
	if len(all) < 300 {
		t.Fatalf("only %d packages are listed", len(all))
	}
	return all
}

// foreign are packages, or the beginning of their paths, that are kept out of what every host
// runs, and what there is in their place.
var foreign = map[string]string{
	"github.com/apache/beam":               "cmd/psidecar-beam is a module of its own",
	module + "cmd/psidecar-beam":           "it is a module of its own",
	"github.com/gopacket":                  "internal/wire/pslite/capture reads captures",
	"gonum.org/v1/plot":                    "internal/chart draws",
	"html/template":                        "the page is built beforehand; gRPC's traces are off by the tag grpcnotrace",
	"k8s.io/api":                           "of Kubernetes' objects only metadata is read",
	"k8s.io/client-go/applyconfigurations": "nothing is applied",
	"k8s.io/client-go/kubernetes":          "of Kubernetes' objects only metadata is read",
}

func TestProductIsLight(t *testing.T) {
	for pkg := range depsOf(t, "", "./cmd/psidecar", "./cmd/psjob") {
		for out, instead := range foreign {
			if pkg == out || strings.HasPrefix(pkg, out+"/") {
				t.Errorf("the product depends on %s: %s", pkg, instead)
			}
		}
	}
}

// byName are calls by which a program reaches text/template or looks for a method by a name that
// the linker cannot know, so that it keeps every exported method of every type: megabytes.
var byName = regexp.MustCompile(`\b(MethodByName|AddTemplateFuncs?|Set(Usage|Help|Version)Template)\(`)

func TestMethodsAreNotLookedUpByName(t *testing.T) {
	for pkg, imports := range depsOf(t, "{{.Imports}}", "./cmd/psidecar", "./cmd/psjob") {
		folder, ours := strings.CutPrefix(pkg, module)
		if !ours {
			continue
		}
		for imported := range strings.FieldsSeq(strings.Trim(imports, "[]")) {
			if imported == "text/template" || imported == "html/template" {
				t.Errorf("%s imports %s, which calls methods by name", folder, imported)
			}
		}
		for name, source := range sources(t, "../../"+folder) {
			if call := byName.FindString(source); call != "" {
				t.Errorf("%s calls %s), and every program has every method", name, call)
			}
		}
	}
}

// sources returns the files of a package by name, without tests.
func sources(t *testing.T, folder string) map[string]string {
	t.Helper()
	names := require.Value(filepath.Glob(filepath.Join(folder, "*.go")))(t)
	all := map[string]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text := require.Value(os.ReadFile(name))(t)
		all[name] = string(text)
	}
	return all
}
