package cli

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode"

	"github.com/psidecar/psidecar/test/require"
)

func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"worker0 198.18.0.1:9091": "worker0 198.18.0.1:9091",
		"Größe 漢字 ✓":              "Größe 漢字 ✓",
		"\x1b[2J\x1b]0;x\x07":     `\u001b[2J\u001b]0;x\u0007`,
		"a\nb\tc\rd":              `a\u000ab\u0009c\u000dd`,
		"\u009b31m":               `\u009b31m`, // one character that begins a sequence
		"\x9b31m":                 `\ufffd31m`, // the same as a single byte
		"\u202eabc\u2066":         `\u202eabc\u2066`,
		"\u2028\u200b\x7f":        `\u2028\u200b\u007f`,
		"\U000e0041":              `\udb40\udc41`, // a tag that nobody sees
		"\ufffd":                  "\ufffd",
	} {
		if got := Clean(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	for _, s := range []string{"a\tb\nc\n", "x\x1b[31my\r\n"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if got, want := out.String(), "a\tb\nc\nx\\u001b[31my\\u000d\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A character that comes in pieces is the same.
func TestWriterOfPieces(t *testing.T) {
	const text = "aß漢🙂\u009b\n"
	var whole, pieces bytes.Buffer
	require.Value(NewWriter(&whole).Write([]byte(text)))(t)
	w := NewWriter(&pieces)
	for i := range len(text) {
		if n, err := w.Write([]byte(text[i : i+1])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if pieces.String() != whole.String() || whole.String() != "aß漢🙂\\u009b\n" {
		t.Errorf("in pieces %q, whole %q", pieces.String(), whole.String())
	}
}

// JSON that goes through a Writer says the same as before.
func TestJSONStaysJSON(t *testing.T) {
	want := "a\u009b\u202e\U000e0041\x1b\n\x7fz"
	var out bytes.Buffer
	require.NoError(t, json.NewEncoder(NewWriter(&out)).Encode(want))
	var got string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got != want {
		t.Errorf("%s is read as %q, %v, want %q", out.Bytes(), got, err, want)
	}
}

// Whatever is written, nothing of it works a terminal.
func FuzzWriter(f *testing.F) {
	f.Add([]byte("a\x1b\x9b\u009b\u202e"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		require.Value(NewWriter(&out).Write(b))(t)
		for _, r := range out.String() {
			if unicode.IsControl(r) && r != '\n' && r != '\t' {
				t.Fatalf("%q has %U", out.String(), r)
			}
		}
	})
}
