package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// released matches a version that is a tag, on the commit that it names. Between tags git
// describe appends a number of commits.
var released = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)[0-9.]*)?$`)

// changes returns the section of CHANGELOG.md for the version: its own for a tag, otherwise
// Unreleased. A missing or empty section is an error, so that no release goes out without one.
func (o *options) changes() ([]byte, error) {
	path := filepath.Join(o.root, "CHANGELOG.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	title := "Unreleased"
	// A version between tags has its changes under Unreleased still.
	if released.MatchString(o.version) {
		title = strings.TrimPrefix(o.version, "v")
	}
	for _, part := range strings.Split("\n"+string(text), "\n## ")[1:] {
		heading, body, _ := strings.Cut(part, "\n")
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(heading), "v"), " ")
		if name != title {
			continue
		}
		if strings.TrimSpace(body) == "" {
			return nil, fmt.Errorf("%s: the section %q is empty", path, title)
		}
		return []byte("# psidecar " + o.version + "\n\n" + strings.TrimSpace(body) + "\n"), nil
	}
	return nil, fmt.Errorf("%s has no section ## %s: what is under Unreleased goes there", path, title)
}
