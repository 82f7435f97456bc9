package aggregate

import (
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Bytes are added only where --char-values and the message's command name the same type.
func TestBytesAreAddedAsTheirCommandSays(t *testing.T) {
	const float16s, int64s, rowSparse = 5, 27, 1
	for _, c := range []struct {
		kind  pslite.DataType
		head  int32
		chars string
		want  bool
	}{
		{pslite.Char, 0, "float32", true},
		{pslite.Other, float16s, "float16", true},
		{pslite.Char, float16s, "float32", false},
		{pslite.Char, 0, "float16", false},
		{pslite.Char, int64s, "float32", false},
		{pslite.Char, rowSparse, "float32", false},
		{pslite.Char, 0, "", false},
		{pslite.Float, float16s, "", true}, // a typed message says itself what it has
		{pslite.Int64, 7, "float32", true},
	} {
		s := subject{kind: c.kind, head: c.head}
		if got := s.addable(c.chars); got != c.want {
			t.Errorf("type %v, command %d, --char-values %q: added %v, want %v", c.kind, c.head, c.chars, got, c.want)
		}
	}
}
