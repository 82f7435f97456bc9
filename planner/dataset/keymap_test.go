package dataset

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/splitmix"
	"github.com/psidecar/psidecar/test/require"
)

func TestSpreadIsEven(t *testing.T) {
	const servers, n = 8, 80000
	for name, id := range map[string]func(i uint64) uint64{
		"dense":     func(i uint64) uint64 { return i },
		"multiples": func(i uint64) uint64 { return i << 20 },
		"high":      func(i uint64) uint64 { return MaxID - i },
	} {
		var count [servers]int
		for i := range uint64(n) {
			count[Spread(id(i))/(math.MaxUint64/servers)]++
		}
		for server, c := range count {
			if c < n/servers*95/100 || c > n/servers*105/100 {
				t.Errorf("%s ids: server %d gets %d of %d keys", name, server, c, n)
			}
		}
	}
}

// The keys are part of what users store: a running job, its checkpoint and a
// placement must agree for ever.
func TestSpreadStaysAsItIs(t *testing.T) {
	for id, want := range map[uint64]uint64{
		0: 0xe220a8397b1dcdaf, 1: 0x910a2dec89025cc1, 12345: 0x22118258a9d111a0, MaxID: 0x481ec0a212a9f3db,
	} {
		if got := Spread(id); got != want {
			t.Errorf("Spread(%d) = %#x, want %#x", id, got, want)
		}
	}
}

// unmix inverts splitmix.Next.
func unmix(x uint64) uint64 {
	inverse := func(odd uint64) uint64 { // by Newton's iteration mod 2^64
		y := odd
		for range 6 {
			y *= 2 - odd*y
		}
		return y
	}
	x ^= x>>31 ^ x>>62
	x *= inverse(0x94d049bb133111eb)
	x ^= x>>27 ^ x>>54
	x *= inverse(0xbf58476d1ce4e5b9)
	x ^= x>>30 ^ x>>60
	return x - 0x9e3779b97f4a7c15
}

func TestSpreadNeverGivesTheLastKey(t *testing.T) {
	culprit := unmix(math.MaxUint64)
	if splitmix.Next(culprit) != math.MaxUint64 {
		t.Fatal("unmix does not invert mix")
	}
	if key := Spread(culprit); key != splitmix.Next(math.MaxUint64) || key == math.MaxUint64 {
		t.Errorf("Spread(%d) = %d", culprit, key)
	}
}

func TestKeyMapFile(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "keys")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	m, err := ParseKeyMap("file:" + write("# feature key\n7 100\n 9\t18446744073709551614 # last\n\n"))
	require.NoError(t, err)
	if key, err := m.Key(7); key != 100 || err != nil {
		t.Errorf("Key(7) = %d, %v", key, err)
	}
	if key, err := m.Key(9); key != math.MaxUint64-1 || err != nil {
		t.Errorf("Key(9) = %d, %v", key, err)
	}
	if _, err := m.Key(8); err == nil || !strings.Contains(err.Error(), "feature id 8 has no key") {
		t.Errorf("Key(8): got %v", err)
	}
	for name, tc := range map[string]struct{ text, want string }{
		"one word":     {"7\n", "line 1: want a feature id and its key"},
		"not a number": {"1 2\nx 3\n", "line 2: feature id \"x\""},
		"last key":     {"7 18446744073709551615\n", "line 1: key"},
		"id twice":     {"7 1\n7 2\n", "line 2: duplicate feature id 7"},
		"key twice":    {"7 1\n8 1\n", "line 2: key 1 already belongs to feature id 7"},
	} {
		if _, err := ParseKeyMap("file:" + write(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	for _, text := range []string{"", "identity"} {
		m, err := ParseKeyMap(text)
		if key, keyErr := m.Key(42); err != nil || keyErr != nil || key != 42 {
			t.Errorf("%q: Key(42) = %d, %v, %v", text, key, err, keyErr)
		}
	}
	m, err = ParseKeyMap("spread")
	if key, keyErr := m.Key(42); err != nil || keyErr != nil || key != Spread(42) {
		t.Errorf("spread: Key(42) = %d, %v, %v", key, err, keyErr)
	}
	if _, err := ParseKeyMap("hashed"); err == nil {
		t.Error("key map hashed: want an error")
	}
}
