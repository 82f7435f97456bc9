package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

var _ route.Ledger = (*Ledger)(nil)

func open(t *testing.T, path string, o Options) *Ledger {
	t.Helper()
	l := require.Value(Open(path, o))(t)
	t.Cleanup(func() {
		if err := l.CloseFile(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// killed returns what another process finds where this one is killed now.
func killed(t *testing.T, path string, o Options) *Ledger {
	t.Helper()
	b := require.Value(os.ReadFile(path))(t)
	copied := filepath.Join(t.TempDir(), "ledger")
	require.NoError(t, os.WriteFile(copied, b, 0o600))
	o.Space = nil
	return open(t, copied, o)
}

// same compares what two ledgers say of requests.
func same(t *testing.T, when string, got, want *Ledger, ids []route.ID) {
	t.Helper()
	describe := func(l *Ledger) (all []string) {
		for _, k := range l.Load() {
			all = append(all, fmt.Sprint(k))
		}
		slices.Sort(all)
		return all
	}
	if g, w := describe(got), describe(want); !slices.Equal(g, w) {
		t.Fatalf("%s: under way are\n%v, want\n%v", when, g, w)
	}
	if got.Resend() != want.Resend() {
		t.Fatalf("%s: PS_RESEND %v, want %v", when, got.Resend(), want.Resend())
	}
	for _, id := range ids {
		if got.Seen(id) != want.Seen(id) {
			t.Fatalf("%s: %+v was seen: %v, want %v", when, id, got.Seen(id), want.Seen(id))
		}
	}
}

// many returns that many owners of a request.
func many(n int) []int32 {
	owners := make([]int32, n)
	for i := range owners {
		owners[i] = int32(7 * i)
	}
	return owners
}

// TestKilledLedgerIsFoundAsInMemory does what routers do, in any order, and compares again and again
// what another process finds with what is in memory.
func TestKilledLedgerIsFoundAsInMemory(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		path, o := filepath.Join(t.TempDir(), "job", "worker-9"), Options{Worker: 9, Servers: 3}
		l := open(t, path, o)
		var under, all []route.ID
		given := map[int32]bool{}
		for i := range 3000 {
			switch n := r.IntN(100); {
			case n < 45:
				id := route.ID{Server: r.Int32N(3), App: 0, Timestamp: int32(i/2) * int32(1+seed*40)}
				k := route.Kept{ID: id, Flags: route.Flags(r.IntN(2))}
				if r.IntN(2) == 0 {
					k.Own = l.Next()
					given[k.Own] = true
					k.Owners = many([]int{1, 2, 24, 25, 74, 75, 300}[r.IntN(7)])
				}
				l.Open(k)
				under, all = append(under, id), append(all, id)
			case n < 60 && len(under) > 0:
				l.Mark(under[r.IntN(len(under))], route.Acked)
			case n < 95 && len(under) > 0:
				at := r.IntN(len(under))
				l.Close(under[at])
				under = slices.Delete(under, at, at+1)
			case n > 96 && len(under) > 0:
				id := under[r.IntN(len(under))]
				if k := l.open[id]; k != nil && len(k.Owners) > 0 {
					l.In(id, 1<<r.IntN(min(len(k.Owners), 32)))
				}
			case n == 95:
				l.UseResend()
			case n == 96:
				other := killed(t, path, o)
				same(t, fmt.Sprintf("seed %d, after %d", seed, i), other, l, all)
				for range 3 {
					if own := other.Next(); given[own] || own < route.FirstOwn || own >= route.FirstExact {
						t.Fatalf("seed %d: timestamp %d is given again", seed, own)
					}
				}
			}
		}
		require.NoError(t, l.Trouble())
	}
}

// Timestamps start over after the last one.
func TestTimestampsBeginAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	l := open(t, path, Options{})
	l.next, l.reserved = uint32(route.Own)-2, uint32(route.Own)-2
	for _, want := range []int32{int32(route.Own) - 1, 0, 1} {
		if got := l.Next() - route.FirstOwn; got != want {
			t.Errorf("%d follows, want %d", got, want)
		}
	}
	if got := killed(t, path, Options{}).Next() - route.FirstOwn; got < 2 || got > 2*reserve {
		t.Errorf("after a kill %d follows", got)
	}
}

// A window forgets what is older than it remembers, which then counts as seen.
func TestWindowMovesOn(t *testing.T) {
	path, o := filepath.Join(t.TempDir(), "l"), Options{Servers: 2}
	l := open(t, path, o)
	at := func(n int32) route.ID { return route.ID{Server: 1, Timestamp: n} }
	for n := int32(0); n < 3*remembered; n += 97 {
		l.Open(route.Kept{ID: at(n)})
		l.Close(at(n))
	}
	last := int32(3*remembered-1) / 97 * 97
	for _, c := range []struct {
		n    int32
		want bool
	}{{last, true}, {last + 1, false}, {last - 1, false}, {last - remembered + 5000, (last-remembered+5000)%97 == 0}, {1, true}, {-1, true}} {
		if got := l.Seen(at(c.n)); got != c.want {
			t.Errorf("%d was seen: %v, want %v", c.n, got, c.want)
		}
	}
	if n := len(l.windows[place{1, 0}].blocks); n > l.perWindow() {
		t.Errorf("%d blocks", n)
	}
	if n := l.file.records; n > firstGrowth {
		t.Errorf("%d records for one window", n)
	}
	same(t, "after a kill", killed(t, path, o), l, []route.ID{at(last), at(last - 1), at(1), at(last - remembered + 5000)})
}

// A ledger is as large as what it keeps: that of a worker of very many servers
// too, of whom it has asked none.
func TestSizedByNeed(t *testing.T) {
	path, o := filepath.Join(t.TempDir(), "l"), Options{Servers: 4096, Space: &Space{Limit: 32 << 20}}
	l := open(t, path, o)
	if used := o.Space.Used(); used > 8<<10 {
		t.Errorf("an empty ledger has %d bytes", used)
	}
	for server := range int32(4096) {
		for n := range int32(20) {
			id := route.ID{Server: server, Timestamp: n}
			l.Open(route.Kept{ID: id})
			l.Close(id)
		}
	}
	info := require.Value(os.Stat(path))(t)
	if used := o.Space.Used(); used != info.Size() || used > 2<<20 {
		t.Errorf("after 20 requests to each of 4096 servers it has %d bytes, and counts %d", info.Size(), used)
	}
	if l.Trouble() != nil {
		t.Error(l.Trouble())
	}
}

// Every way to change a byte, to cut the file, or to lose a page is found.
func TestDamagedLedgerIsFoundOut(t *testing.T) {
	path, o := filepath.Join(t.TempDir(), "l"), Options{Worker: 9, Servers: 2}
	l := open(t, path, o)
	l.UseResend()
	for n := range int32(2000) {
		l.Open(route.Kept{ID: route.ID{Server: n % 2, Timestamp: n}, Own: l.Next(), Owners: []int32{0, 1}})
		if n%100 > 3 {
			l.Close(route.ID{Server: n % 2, Timestamp: n})
		}
	}
	whole := require.Value(os.ReadFile(path))(t)
	used := func(at int) bool { return at < headerUsed || at >= headerSize }
	r := rand.New(rand.NewPCG(1, 1))
	try := func(what string, b []byte) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "l")
		require.NoError(t, os.WriteFile(file, b, 0o600))
		if l, err := Open(file, o); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", what, errors.Join(err, l.CloseFile()))
		}
	}
	for range 300 {
		at := r.IntN(len(whole))
		if !used(at) {
			continue
		}
		b := slices.Clone(whole)
		b[at] ^= 1 << r.IntN(8)
		try(fmt.Sprintf("byte %d is another", at), b)
	}
	for range 50 {
		n := r.IntN(len(whole))
		try(fmt.Sprintf("cut to %d bytes", n), whole[:n])
		at := r.IntN(len(whole)/4096) * 4096
		b := slices.Clone(whole)
		clear(b[at : at+4096])
		try(fmt.Sprintf("the page at %d is zero", at), b)
	}
	other := o
	other.Worker = 11
	if _, err := Open(path, other); !errors.Is(err, ErrDamaged) {
		t.Errorf("another worker's: %v", err)
	}
	for n := range maxRecords {
		var zero record
		if _, err := zero.kindOf(n); err == nil {
			t.Errorf("record %d may be zeros", n)
		}
	}
}

// TestTornWritesAreThereOrNot kills between any two stores of every kind of write: what is found
// then is what was there before, or after.
func TestTornWritesAreThereOrNot(t *testing.T) {
	path, o := filepath.Join(t.TempDir(), "l"), Options{Servers: 1}
	l := open(t, path, o)
	id := func(n int32) route.ID { return route.ID{Timestamp: n} }
	for n := range int32(5) {
		l.Open(route.Kept{ID: id(n), Own: 7, Owners: []int32{0}})
	}
	l.Close(id(0))
	var steps []step
	l.file.writing = func(number int, there, b *record) {
		steps = append(steps, step{number, *there, *b})
	}
	torn := 0
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"begins, and is seen", func() { l.Open(route.Kept{ID: id(700), Own: 8, Owners: []int32{0}}) }},
		{"begins a block", func() { l.Open(route.Kept{ID: id(blockBits + 3)}) }},
		{"is marked", func() { l.Mark(id(1), route.Acked) }},
		{"ends", func() { l.Close(id(2)) }},
		{"begins where another ended", func() { l.Open(route.Kept{ID: id(900), Own: 9}) }},
		{"begins among many servers", func() { l.Open(route.Kept{ID: id(901), Own: 8, Owners: many(130)}) }},
		{"among many servers ends", func() { l.Close(id(901)) }},
		{"begins where owners were", func() { l.Open(route.Kept{ID: id(902), Own: 8, Owners: many(90)}) }},
		{"moves the window on", func() { l.Open(route.Kept{ID: id(3 * remembered)}) }},
	} {
		before := require.Value(os.ReadFile(path))(t)
		steps = nil
		c.do()
		whole := slices.Clone(before)
		for i, s := range steps {
			for _, state := range s.states() {
				file := slices.Clone(whole)
				copy(file[headerSize+s.number*recordSize:], state[:])
				name := filepath.Join(t.TempDir(), "l")
				require.NoError(t, os.WriteFile(name, file, 0o600))
				found := open(t, name, o)
				if seen := found.Seen(id(900)); seen && found.open[id(900)] == nil && c.name == "begins where another ended" {
					t.Errorf("%s, write %d: it is seen and not under way", c.name, i)
				}
				for _, k := range found.Load() {
					if n := len(k.Owners); n > 1 && !slices.Equal(k.Owners, many(n)) || n != map[int32]int{901: 130, 902: 90}[k.ID.Timestamp] && n > 1 {
						t.Errorf("%s, write %d: request %d is under way among %v", c.name, i, k.ID.Timestamp, k.Owners)
					}
					if k.Own != 7 && k.Own != 8 && k.Own != 9 && k.Own != 0 {
						t.Errorf("%s, write %d: %+v is under way", c.name, i, k)
					}
				}
				if c.name != "ends" && found.open[id(3)] == nil || found.open[id(1)] == nil {
					t.Errorf("%s, write %d: a request under way is lost", c.name, i)
				}
				if c.name != "moves the window on" && (!found.Seen(id(4)) || found.Seen(id(5))) {
					t.Errorf("%s, write %d: what was seen is another", c.name, i)
				}
				torn++
			}
			copy(whole[headerSize+s.number*recordSize:], s.b[:])
		}
		same(t, c.name, killed(t, path, o), l, []route.ID{id(0), id(1), id(4), id(5), id(700), id(900), id(blockBits + 3)})
	}
	t.Logf("%d states between two stores", torn)
}

// step is one write of a record.
type step struct {
	number   int
	there, b record
}

// states are all that a kill during the write can leave.
func (s step) states() (all []record) {
	state := s.there
	add := func() { all = append(all, state) }
	add()
	if !bytes.Equal(s.there[contentAt:], s.b[contentAt:]) {
		binary.LittleEndian.PutUint64(state[:], marker(&s.there, &s.b))
		add()
		for at := contentAt; at < recordSize; at += 8 {
			copy(state[at:at+8], s.b[at:])
			add()
		}
	}
	copy(state[:8], s.b[:])
	add()
	return all
}

// BenchmarkRequest is what a ledger costs a request that passes as it is, and
// one that is split.
func BenchmarkRequest(b *testing.B) {
	l := require.Value(Open(filepath.Join(b.TempDir(), "l"), Options{Servers: 4}))(b)
	b.ReportAllocs()
	n := int32(0)
	for b.Loop() {
		k := route.Kept{ID: route.ID{Server: n % 4, Timestamp: n / 4}}
		l.Open(k)
		l.Mark(k.ID, route.Acked)
		l.Close(k.ID)
		n++
	}
	require.NoError(b, l.CloseFile())
}

// That a request was split is known for good: it is by this that a proxy tells
// whether a server has what was seen.
func TestThatARequestWasSplitIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker-9")
	open := func() *Ledger {
		l := require.Value(Open(path, Options{Worker: 9, Servers: 2}))(t)
		return l
	}
	l := open()
	l.Open(route.Kept{ID: route.ID{Timestamp: 1}})
	if l.Split() {
		t.Error("a request that passed counts as split")
	}
	l.Open(route.Kept{ID: route.ID{Timestamp: 2}, Own: l.Next(), Owners: []int32{0, 1}})
	l.Close(route.ID{Timestamp: 2})
	for range 2 {
		require.NoError(t, l.CloseFile())
		if l = open(); !l.Split() {
			t.Error("it is forgotten that a request was split")
		}
	}
	if err := l.CloseFile(); err != nil {
		t.Error(err)
	}
}
