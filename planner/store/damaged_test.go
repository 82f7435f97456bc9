package store

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
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
	s, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := s.Write(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
	}
	holds = contents(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return mustRead(t, path), before, holds
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// damages are what can happen to a file on its disk; used is how much of it
// bbolt uses.
var damages = map[string]func(r *rand.Rand, b, before []byte, used int) []byte{
	"a byte is another": func(r *rand.Rand, b, _ []byte, used int) []byte {
		b[r.IntN(used)] ^= byte(1 + r.IntN(255))
		return b
	},
	"a bit of a page's head has flipped": func(r *rand.Rand, b, _ []byte, used int) []byte {
		b[r.IntN(used/trialPage)*trialPage+r.IntN(80)] ^= 1 << r.IntN(8)
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

// TestDamagedFile damages a store in hundreds of ways. Each opens with exactly
// what was written, or not at all, with an error that says so.
func TestDamagedFile(t *testing.T) {
	now, before, holds := real(t)
	m, err := readMetas(strings.NewReader(string(now)), int64(len(now)))
	if err != nil {
		t.Fatal(err)
	}
	used := int(m.pages) * trialPage
	refused := 0
	for name, damage := range damages {
		for seed := range uint64(trials) {
			damaged := damage(rand.New(rand.NewPCG(seed, 3)), append([]byte(nil), now...), before, used)
			path := filepath.Join(t.TempDir(), "plans")
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := OpenFile(path)
			if err != nil {
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "move it away") {
					t.Errorf("%s, seed %d: %v", name, seed, err)
				}
				refused++
				continue
			}
			if got := contents(t, s); !maps.Equal(got, holds) {
				t.Errorf("%s, seed %d: it opens with %d entries, %d were written, or others", name, seed, len(got), len(holds))
			}
			if err := s.Write(t.Context(), []Entry{{"more", []byte("1")}}); err != nil {
				t.Errorf("%s, seed %d: it opens, and is not written: %v", name, seed, err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("%s, seed %d: %v", name, seed, err)
			}
		}
	}
	t.Logf("%d of %d damaged stores were refused, the others had what was written", refused, trials*len(damages))
	if refused < trials*len(damages)/3 { // not all of the file is in use
		t.Errorf("%d of %d damaged stores were refused: so few cannot be", refused, trials*len(damages))
	}
}

// TestDamagedWhileOpen damages a store under those who use it.
func TestDamagedWhileOpen(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, path string){
		"cut": func(t *testing.T, path string) {
			if err := os.Truncate(path, 2*trialPage); err != nil {
				t.Fatal(err)
			}
		},
		"zero": func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteAt(make([]byte, filled-2*trialPage), 2*trialPage)
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { damageOpen(t, harm) })
	}
}

func damageOpen(t *testing.T, harm func(t *testing.T, path string)) {
	now, _, _ := real(t)
	path := filepath.Join(t.TempDir(), "plans")
	if err := os.WriteFile(path, now, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	harm(t, path)
	if err := s.Each(t.Context(), func(string, []byte) error { return nil }); !errors.Is(err, ErrDamaged) {
		t.Errorf("reading gives %v", err)
	}
	for range 2 {
		if err := s.Write(t.Context(), []Entry{{"job/10.0.0.1:9000/head", []byte("1")}}); !errors.Is(err, ErrDamaged) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("writing gives %v", err)
		}
	}
	if err := s.Close(); !errors.Is(err, ErrDamaged) {
		t.Errorf("closing gives %v", err)
	}
}

// TestWithoutInventory opens a store of before there were checksums.
func TestWithoutInventory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"job/a/head": `{"format":1}`, "job/a/log/0": "\n\x02", "empty": ""}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket(entriesBucket)
		for name, value := range want {
			err = errors.Join(err, b.Put([]byte(name), []byte(value)))
		}
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := contents(t, s); !maps.Equal(got, want) {
			t.Errorf("it holds %q, want %q", got, want)
		}
		if err := s.Write(t.Context(), []Entry{{"more", []byte("5")}}); err != nil {
			t.Fatal(err)
		}
		want["more"] = "5"
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b := mustRead(t, path)
	if checked, _, err := inspect(strings.NewReader(string(b)), int64(len(b))); err != nil || !checked {
		t.Errorf("it has checksums: %v, %v", checked, err)
	}
}
