package require

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update-transcripts", false, "write what comes of the commands into the transcripts")

// RunTranscripts plays testdata/*.txt, each from its own start: that returns what plays a command's
// words and writes what comes of it. Lines that begin with # say what is going on, and a
// block without ---- is text alone.
func RunTranscripts(t *testing.T, start func(t *testing.T) func(words []string, out io.Writer)) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(string(text), start(t))
			switch {
			case *update:
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			case got != string(text):
				t.Errorf("%s: this is what happens now (-update-transcripts writes it):\n%s", file, got)
			}
		})
	}
}

// play returns a transcript with what comes of its commands.
func play(text string, do func(words []string, out io.Writer)) string {
	var got strings.Builder
	for i, block := range strings.Split(strings.TrimRight(text, "\n"), "\n\n") {
		if i > 0 {
			got.WriteString("\n")
		}
		commands, _, played := strings.Cut(block, "----")
		fmt.Fprintln(&got, strings.TrimRight(commands, "\n"))
		if !played {
			continue
		}
		fmt.Fprintln(&got, "----")
		for line := range strings.Lines(commands) {
			if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
				do(words, &got)
			}
		}
	}
	return got.String()
}
