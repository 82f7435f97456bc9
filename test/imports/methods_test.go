package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// maxTypes is how many types may have a method of one name. A name on more of them
// says little about any; a verb and its object (addRule, dropNode) say what happens.
const maxTypes = 12

// common are the names that may be on more types: those of Go's own interfaces and of
// libraries, which readers know, and their unexported forms.
var common = []string{
	"Add", "Append", "Check", "Close", "close", "Collect", "Describe", "Error", "Len",
	"Reset", "Run", "String", "Write",
}

// methodTypes returns, by name of a method, the types below a folder that have one,
// leaving out tests and generated files.
func methodTypes(root string) (map[string]map[string]bool, error) {
	all := map[string]map[string]bool{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "testdata" || d.Name() == "test"):
			return filepath.SkipDir
		case d.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			if all[f.Name.Name] == nil {
				all[f.Name.Name] = map[string]bool{}
			}
			all[f.Name.Name][filepath.Dir(name)+"."+receiver(f.Recv.List[0].Type)] = true
		}
		return nil
	})
	return all, err
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func TestMethodNamesSayWhatTheyDo(t *testing.T) {
	all := require.Value(methodTypes("../.."))(t)
	if len(all["String"]) < 20 {
		t.Fatalf("only %d types with String were found", len(all["String"]))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if types := all[name]; len(types) > maxTypes && !slices.Contains(common, name) {
			t.Errorf("%d types have a method %s, want at most %d; say its object too: %s",
				len(types), name, maxTypes, strings.Join(slices.Sorted(maps.Keys(types)), ", "))
		}
	}
}
