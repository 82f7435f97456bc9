package readme

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/reason"
)

// root is the project's folder.
const root = "../.."

// documents returns the Markdown files of the project, by path from root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && (name == "node_modules" || name == "bin" || name == ".deps" || name == ".git") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, root+"/")] = string(text)
		return err
	})
	if err != nil || len(all) < 20 {
		t.Fatalf("%d documents, %v", len(all), err)
	}
	return all
}

// The README is read to its end, and so is a page of the manual.
func TestDocumentsAreShort(t *testing.T) {
	all := documents(t)
	if n := strings.Count(all["README.md"], "\n"); n > 120 {
		t.Errorf("the README has %d lines, of 120", n)
	}
	pages := 0
	for name, text := range all {
		if filepath.Dir(name) == "docs" || filepath.Dir(name) == "docs/design" {
			pages++
			if n := len(strings.Fields(text)); n > 1500 && name != "docs/matrix.md" { // a table, which test/matrix writes
				t.Errorf("%s has %d words, of 1500", name, n)
			}
			if from := all["README.md"] + all["ARCHITECTURE.md"]; !strings.Contains(from, name) && !strings.Contains(from, strings.TrimPrefix(name, "docs/")) {
				t.Errorf("neither README nor ARCHITECTURE leads to %s", name)
			}
		}
	}
	if pages < 12 {
		t.Errorf("the manual has %d pages", pages)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	// anchors have letters, digits, underscores and hyphens of a heading, as GitHub makes them
	other = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns those of a document's headings.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all[strings.ReplaceAll(other.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return all
}

// Each link between documents leads to a file that is there, and to a heading of it.
func TestLinksLeadSomewhere(t *testing.T) {
	all := documents(t)
	for name, text := range all {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			to := name
			if path != "" {
				to = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if anchor != "" && !anchors(all[to])[anchor] {
				t.Errorf("%s links to %s, which has no such heading", name, m[1])
			}
		}
	}
}

// A document that source files, errors and help name is there: from the file's folder or one
// above it.
func TestNamedDocumentsAreThere(t *testing.T) {
	named := regexp.MustCompile(`(?:docs/[a-z/-]+|[a-z./-]*[A-Z]+)\.md\b`) // others are what programs write
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && (name == "node_modules" || name == "bin" || name == "testdata" || name == ".git") {
			return filepath.SkipDir
		}
		switch filepath.Ext(path) {
		case ".go", ".c", ".h", ".ts", ".txt", ".tpl", ".service":
		default:
			return nil
		}
		if filepath.Dir(path) == root+"/test/readme" || strings.HasPrefix(path, root+"/deploy/release") || strings.HasPrefix(path, root+"/deploy/chartdoc") {
			return nil // documents of their own
		}
		text, err := os.ReadFile(path)
		for _, name := range named.FindAllString(string(text), -1) {
			found++
			if !there(filepath.Dir(path), name) {
				t.Errorf("%s names %s, which is not there", path, name)
			}
		}
		return err
	})
	if err != nil || found < 20 {
		t.Errorf("%d documents are named, %v", found, err)
	}
}

// there reports whether a file is in the project, in a folder, or in one above it.
func there(folder, name string) bool {
	for dir := folder; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
		if dir == root || dir == "." {
			return false
		}
	}
}

// Each reason for which a connection ends is explained.
func TestReasonsAreExplained(t *testing.T) {
	text := documents(t)["docs/troubleshooting.md"]
	for _, r := range reason.All {
		if !strings.Contains(text, fmt.Sprintf("`%s`", r)) {
			t.Errorf("docs/troubleshooting.md does not explain %s", r)
		}
	}
}

// Each flag that README, manual and design notes name is one of psidecar's.
func TestFlagsAreThere(t *testing.T) {
	all := documents(t)
	flag := regexp.MustCompile(`--[a-z][a-z0-9-]*`)
	known := map[string]bool{"--help": true, "--json": true, "--log-level": true} // of all commands, or of most
	for _, m := range flag.FindAllString(all["cmd/psidecar/FLAGS.md"], -1) {
		known[m] = true
	}
	if len(known) < 100 {
		t.Fatalf("FLAGS.md has %d flags", len(known))
	}
	inText := regexp.MustCompile("`[^`\n]*`")
	for name, text := range all {
		if name != "README.md" && !strings.HasPrefix(name, "docs/") {
			continue
		}
		for _, quoted := range inText.FindAllString(fenced.ReplaceAllString(text, ""), -1) {
			if strings.HasPrefix(quoted, "`--set ") || !strings.HasPrefix(quoted, "`--") && !strings.HasPrefix(quoted, "`psidecar ") {
				continue // of helm and other programs
			}
			for _, f := range flag.FindAllString(quoted, -1) {
				if !known[f] {
					t.Errorf("%s names %s in %s, which psidecar does not have", name, f, quoted)
				}
			}
		}
	}
}
