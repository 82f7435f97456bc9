package jobs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

func newJournal(t testing.TB, dir string) *journal {
	t.Helper()
	j := require.Value(beginJournal(dir, route.NewTable(3), map[route.Batch][]plan.Keys{}, nil, "s1", 0))(t)
	return j
}

// A journal that is read again says what it said, wherever the proxy was killed.
func TestJournalSurvives(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			r.Fatal(err)
		}
		j := newJournal(t, dir)
		owners := map[uint64]int32{}
		held := map[route.Batch]uint64{}
		free := func(k uint64) bool {
			for _, other := range held {
				if other == k {
					return false
				}
			}
			return true
		}
		number := uint64(0)
		for range rapid.IntRange(1, 40).Draw(r, "events") {
			k := rapid.Uint64Range(0, 5).Draw(r, "key")
			switch rapid.IntRange(0, 3).Draw(r, "what") {
			case 0:
				if free(k) {
					number++
					b := route.Batch{Mover: "198.18.0.2", Number: number}
					held[b] = k
					j.Held(b, []plan.Keys{plan.One(k)})
				}
			case 1:
				for b, key := range held {
					owner := rapid.SampledFrom([]int32{route.Unchanged, 0, 1, 2}).Draw(r, "owner")
					j.saw("s1", number)
					j.Released(b, owner)
					if owner != route.Unchanged {
						owners[key] = owner
					}
					delete(held, b)
					j.Held(b, []plan.Keys{plan.One(key)}) // another host says that it still holds it
					break
				}
			case 2: // killed, perhaps within a write
				if err := j.close(); err != nil {
					r.Fatal(err)
				}
				if rapid.Bool().Draw(r, "torn") {
					f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0)
					if err != nil {
						r.Fatal(err)
					}
					f.Write(appendRecord(nil, []byte{recordHeld, 1, 2, 3})[:14])
					f.Close()
				}
				if j, err = openJournal(dir, 3); err != nil || j == nil {
					r.Fatalf("reading it again: %v, %v", j, err)
				}
			case 3:
				if err := j.rewrite(); err != nil {
					r.Fatal(err)
				}
			}
		}
		for k := range uint64(6) {
			want := plan.HomeOf(k, 3)
			if o, ok := owners[k]; ok {
				want = o
			}
			if got := j.table.Owner(k); got != want {
				r.Fatalf("key %d belongs to %d, want %d", k, got, want)
			}
		}
		if len(j.held) != len(held) {
			r.Fatalf("held is %v, want %v", j.held, held)
		}
		for b, k := range held {
			if keys := j.held[b]; len(keys) != 1 || keys[0] != plan.One(k) {
				r.Fatalf("batch %v holds %v, want key %d", b, keys, k)
			}
		}
		if err := j.close(); err != nil {
			r.Fatal(err)
		}
	})
}

// A journal that was damaged, or cannot be written, teaches nothing.
func TestJournalDamaged(t *testing.T) {
	dir := t.TempDir()
	j := newJournal(t, dir)
	j.Held(route.Batch{Mover: "a", Number: 1}, []plan.Keys{plan.One(7)})
	require.NoError(t, j.close())
	good := require.Value(os.ReadFile(j.path))(t)
	for at := range good {
		bad := append([]byte(nil), good...)
		bad[at] ^= 0x10
		require.NoError(t, os.WriteFile(j.path, bad, 0o600))
		if _, err := openJournal(dir, 3); !errors.Is(err, errJournal) {
			t.Errorf("byte %d is damaged: %v", at, err)
		}
	}
	j = newJournal(t, dir)
	if err := j.file.Close(); err != nil { // as a disk that takes no more
		t.Fatal(err)
	}
	j.Held(route.Batch{Mover: "a", Number: 1}, []plan.Keys{plan.One(7)})
	if _, err := os.Stat(j.path); !os.IsNotExist(err) || !j.broken {
		t.Errorf("a journal that lacks something is left: %v", err)
	}
}

// What a host knows outlives it, for a store that was lost.
func TestLessonsAfterAKill(t *testing.T) {
	x := oneJob(t, Options{})
	x.locked(func() error { return x.mayBeDisplaced() })
	b := route.Batch{Mover: "10.0.0.2", Number: 5}
	done := route.Batch{Mover: "10.0.0.2", Number: 4}
	x.router.Hold(done, []plan.Keys{plan.One(3)})
	x.see("a store", 9, nil)
	x.router.Release(done, 1)
	x.router.Hold(b, []plan.Keys{plan.One(7)})
	x.close()

	o := Options{Dir: x.jobs.opts.Dir, Planner: "127.0.0.1:1"}
	y := remembered(t, x, o)
	if y.run != x.run || y.router.Ready() {
		t.Fatalf("taken up is %+v", y)
	}
	lessons := y.lessons()
	if len(lessons) != 1 {
		t.Fatalf("%d pieces", len(lessons))
	}
	l := lessons[0]
	if l.GetStore() != "a store" || l.GetVersion() != 9 || l.GetRun() != string(x.run) {
		t.Errorf("it has seen version %d of %q", l.GetVersion(), l.GetStore())
	}
	if d := l.GetDisplaced(); len(d.GetFirst()) != 1 || d.GetFirst()[0] != 3 || d.GetOwner()[0] != 1 {
		t.Errorf("displaced is %v", d)
	}
	if h := l.GetHeld(); len(h.GetFirst()) != 1 || h.GetFirst()[0] != 7 {
		t.Errorf("held is %v", h)
	}
	// Without its journal it knows nothing, and says nothing.
	require.NoError(t, os.Remove(filepath.Join(y.dir, journalName)))
	z := remembered(t, x, o)
	if lessons := z.lessons(); len(lessons) > 0 || z.router.Ready() {
		t.Errorf("without a journal it teaches %v", lessons)
	}
}

// A host with servers alone hears of no move. Were it to teach a store that was
// lost, the store would take all keys to be at home, and a proxy that asks it next
// would send their requests to servers that have old values.
func TestAHostWithoutWorkersTeachesNothing(t *testing.T) {
	x := oneJob(t, Options{})
	delete(x.local, pslite.WorkerID(0))
	x.local[pslite.ServerID(0)] = true
	if lessons := x.lessons(); len(lessons) > 0 || !x.router.Ready() {
		t.Errorf("it teaches %v", lessons)
	}
	x.local[pslite.WorkerID(0)] = true
	if len(x.lessons()) != 1 {
		t.Error("a host with a worker teaches nothing")
	}
}

// A store that has less than this host has seen is not believed.
func TestTrustNoStoreThatHasLessThanWasSeen(t *testing.T) {
	x := oneJob(t, Options{})
	x.displaced, x.seen = true, seen{"s2", 40}
	for _, c := range []struct {
		name    string
		stores  []string
		version uint64
		want    bool
	}{
		{"the same", []string{"s2"}, 40, true},
		{"later", []string{"s2", "s1"}, 41, true},
		{"an old copy", []string{"s2"}, 39, false},
		{"another", []string{"s3"}, 100, false},
		{"one that was taught", []string{"s3", "s2"}, 41, true},
	} {
		if got := x.trusts(&copied{stores: c.stores, version: c.version}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	x.see("s3", 100, nil)
	if x.seen.store != "s2" {
		t.Error("a store that does not go on from the one before is taken for it")
	}
	x.see("s3", 41, []string{"s3", "s2"})
	if x.seen != (seen{"s3", 41}) {
		t.Errorf("seen is %v", x.seen)
	}
}
