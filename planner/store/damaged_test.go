package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

const (
	trialPage = 4096
	trials    = 50 // of each kind of damage
)

// real writes a store like a planner's, and returns the file at the end and as
// it was before some of the writes, with what is in it at the end.
func real(t *testing.T) (now, before []byte, holds map[string]string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plans")
	s := openFile(t, path)
	r := rand.New(rand.NewPCG(1, 2))
	value := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for i := range 120 {
		entries := []Entry{{fmt.Sprintf("job/10.0.0.1:9000/log/%016x", i), value(20 + r.IntN(400))}}
		if i%40 == 0 {
			entries = append(entries, Entry{fmt.Sprintf("job/10.0.0.1:9000/snap/%016x/000000", i), value(30000)})
		}
		if i%3 == 0 {
			entries = append(entries, Entry{fmt.Sprintf("job/10.0.0.1:9000/log/%016x", r.IntN(i+1)), nil}, Entry{"job/10.0.0.1:9000/head", value(80)})
		}
		if i == 100 {
			before = mustRead(t, path)
		}
		require.NoError(t, s.Write(t.Context(), entries))
	}
	holds = contents(t, s)
	require.NoError(t, s.Close())
	return mustRead(t, path), before, holds
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b := require.Value(os.ReadFile(path))(t)
	return b
}

// openFile opens a store, and closes it with the test.
func openFile(t *testing.T, path string) *File {
	t.Helper()
	s := require.Value(OpenFile(path))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

// damages are what can happen to a file on its disk; used is how much of it is in use.
var damages = map[string]func(r *rand.Rand, b, before []byte, used int) []byte{
	"a byte is another": func(r *rand.Rand, b, _ []byte, used int) []byte {
		b[r.IntN(used)] ^= byte(1 + r.IntN(255))
		return b
	},
	"a bit of a header has flipped": func(r *rand.Rand, b, _ []byte, used int) []byte {
		b[r.IntN(2)*trialPage+r.IntN(headerSize)] ^= 1 << r.IntN(8)
		return b
	},
	"it was cut": func(r *rand.Rand, b, _ []byte, used int) []byte { return b[:r.IntN(used)] },
	"it was cut between pages": func(r *rand.Rand, b, _ []byte, used int) []byte {
		return b[:r.IntN(used/trialPage)*trialPage]
	},
	"a page is zero": func(r *rand.Rand, b, _ []byte, used int) []byte {
		at := r.IntN(used/trialPage) * trialPage
		clear(b[at : at+trialPage])
		return b
	},
	"a sector is zero": func(r *rand.Rand, b, _ []byte, used int) []byte {
		at := r.IntN(used/512) * 512
		clear(b[at : at+512])
		return b
	},
	"a page is noise": func(r *rand.Rand, b, _ []byte, used int) []byte {
		at := r.IntN(used/trialPage) * trialPage
		for i := range trialPage {
			b[at+i] = byte(r.Uint32())
		}
		return b
	},
	"a page was never written": func(r *rand.Rand, b, before []byte, used int) []byte {
		at := r.IntN(used/trialPage) * trialPage
		copy(b[at:at+trialPage], before[at:])
		return b
	},
	"a page was written elsewhere": func(r *rand.Rand, b, _ []byte, used int) []byte {
		from, to := r.IntN(used/trialPage)*trialPage, r.IntN(used/trialPage)*trialPage
		copy(b[to:to+trialPage], b[from:from+trialPage])
		return b
	},
}

// TestDamagedFile damages a store in hundreds of ways. Each opens with exactly what was written, or
// empty, and then the damaged file is beside it.
func TestDamagedFile(t *testing.T) {
	logger := slog.Default()
	defer slog.SetDefault(logger)
	slog.SetDefault(slog.New(slog.DiscardHandler)) // hundreds of lines
	now, before, holds := real(t)
	path := filepath.Join(t.TempDir(), "plans")
	require.NoError(t, os.WriteFile(path, now, 0o600))
	used := int(openFile(t, path).head.end)
	aside := 0
	for name, damage := range damages {
		for seed := range uint64(trials) {
			damaged := damage(rand.New(rand.NewPCG(seed, 3)), bytes.Clone(now), before, used)
			path := filepath.Join(t.TempDir(), "plans")
			require.NoError(t, os.WriteFile(path, damaged, 0o600))
			s := openFile(t, path)
			switch got := contents(t, s); {
			case maps.Equal(got, holds):
			case len(got) == 0 && bytes.Equal(mustRead(t, path+".damaged"), damaged):
				aside++
			default:
				t.Errorf("%s, seed %d: it opens with %d entries, %d were written, or others", name, seed, len(got), len(holds))
			}
			if err := s.Write(t.Context(), []Entry{{"more", []byte("1")}}); err != nil {
				t.Errorf("%s, seed %d: it opens, and is not written: %v", name, seed, err)
			}
		}
	}
	t.Logf("%d of %d damaged stores were moved aside, the others had what was written", aside, trials*len(damages))
	if aside < trials*len(damages)/2 { // some damages change nothing
		t.Errorf("%d of %d damaged stores were moved aside: so few cannot be", aside, trials*len(damages))
	}
}

// TestMovedAside: what is found in the place of a store, and what becomes of it.
func TestMovedAside(t *testing.T) {
	bolt := make([]byte, 2*trialPage)
	binary.NativeEndian.PutUint32(bolt[16:], 0xED0CDAED)
	for name, tc := range map[string]struct {
		found []byte
		want  string // in the error; empty: it is moved aside
	}{
		"nothing left":             {nil, ""},
		"a few bytes":              {[]byte(magic[:5]), ""},
		"of an earlier psidecar":   {bolt, ""},
		"something else":           {[]byte(strings.Repeat("no store ", 4096)), "move it away"},
		"something else and short": {[]byte("x"), "move it away"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "plans")
			for _, file := range []string{path, path + ".damaged"} { // an earlier one is replaced
				require.NoError(t, os.WriteFile(file, tc.found, 0o600))
			}
			s, err := OpenFile(path)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) || !bytes.Equal(mustRead(t, path), tc.found) {
					t.Errorf("opening it gives %v, want %q and nothing changed", err, tc.want)
				}
				return
			}
			require.NoError(t, err)
			defer s.Close()
			if got := contents(t, s); len(got) != 0 || !bytes.Equal(mustRead(t, path+".damaged"), tc.found) {
				t.Errorf("it opens with %q", got)
			}
		})
	}
}
