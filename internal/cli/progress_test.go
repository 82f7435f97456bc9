package cli

import (
	"strings"
	"testing"
)

// In a pipe each piece of news is a line, and nothing is cleared.
func TestLiveLine(t *testing.T) {
	var out strings.Builder
	l := NewLiveLine(&out, &out)
	l.Say("one")
	l.Clear()
	l.Say("")
	l.Say("two")
	if out.String() != "one\ntwo\n" {
		t.Errorf("%q", out.String())
	}
}
