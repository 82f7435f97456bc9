package chart

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestManifests: deploy/manifests are made of the chart as it is. That they are
// what helm renders is for test/kubernetes, which has helm; here sums of both
// tell whether either was changed since.
func TestManifests(t *testing.T) {
	const made = "make manifests renders them anew"
	text, err := os.ReadFile("../manifests/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			t.Fatalf("SHA256SUMS has the line %q", line)
		}
		sums[name] = sum
	}
	var files []string
	for _, pattern := range []string{"chart/Chart.yaml", "chart/values.yaml", "chart/templates/*", "manifests/*.yaml"} {
		found, err := filepath.Glob("../" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no file is %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(file, "../")
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != sums[name] {
			t.Errorf("deploy/%s is not what the manifests were made of or as: %s", name, made)
		}
		delete(sums, name)
	}
	for name := range sums {
		t.Errorf("deploy/%s has gone: %s", name, made)
	}
}
