package cli

import (
	"testing"
)

func TestNearest(t *testing.T) {
	for word, want := range map[string]string{
		"treshold": "threshold", "thershold": "threshold", "qantize": "quantize", "q": "", "xyzzy": "", "thresh": "threshold", "ALPHA": "alpha",
	} {
		if got := nearest(word, []string{"threshold", "quantize", "alpha", "at"}); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}
