package cli

import "testing"

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "17": 17, "3KiB": 3 << 10, "2MiB": 2 << 20, "4GiB": 4 << 30, "4294967296GiB": 1 << 62} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "1.5GiB", "4GB", "4294967297GiB", "1KiBMiB"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q: %d, want an error", text, got)
		}
	}
}
