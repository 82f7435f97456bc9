// Package readme holds README and manual to their word: each command in their code blocks is
// run as it stands there, with its default flags, beside a live job on a machine
// both of whose cores are taken, and what it prints is looked at.
//
// A command without a step here fails the tests, and so does a step that they
// no longer have.
package readme

import (
	"strings"
)

// Commands returns the commands in the shell blocks of a Markdown text, without
// what is behind a #.
func Commands(text string) []string {
	var all []string
	inside, shell := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "```") {
			inside = !inside
			shell = inside && (line == "```" || line == "```sh" || line == "```bash")
			continue
		}
		if !shell {
			continue
		}
		command, _, _ := strings.Cut(line, "  #")
		if command = strings.TrimSpace(command); isCommand(command) {
			all = append(all, command)
		}
	}
	return all
}

// isCommand tells commands from what they print.
func isCommand(line string) bool {
	first, _, _ := strings.Cut(line, " ")
	switch first {
	case "psidecar", "psjob", "make", "curl", "helm", "kubectl", "go":
		return true
	}
	return false
}
