package ledger

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

func whole(n int32, place int32, size int) route.Message {
	body := bytes.Repeat([]byte{byte(n)}, size)
	return route.Message{ID: route.ID{Server: 1, Timestamp: n}, Place: place, Dialect: pslite.DMLC, Frames: [][]byte{{1, 2}, {}, body}}
}

func sameMessages(a, b []route.Message) bool {
	return slices.EqualFunc(a, b, func(a, b route.Message) bool {
		return a.ID == b.ID && a.Place == b.Place && a.Dialect == b.Dialect && slices.EqualFunc(a.Frames, b.Frames, bytes.Equal)
	})
}

// Messages are kept and dropped in any order, while the file starts over and is
// compacted: after a kill at any moment the next ledger has those that are kept, in
// their order.
func TestMessagesOutliveTheLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker-9")
	space := &Space{Limit: 64 << 20}
	o := Options{Worker: 9, Servers: 2, Space: space}
	l := require.Value(Open(path, o))(t)
	random := rand.New(rand.NewPCG(1, 2))
	var want []route.Message
	for n := range int32(3000) {
		if len(want) > 0 && random.IntN(100) < 55 {
			i := random.IntN(len(want))
			l.Drop(want[i].ID, want[i].Place)
			want = slices.Delete(want, i, i+1)
		} else {
			m := whole(n, route.Waits, random.IntN(64<<10))
			l.Keep(m)
			want = append(want, m)
		}
		if n%50 > 0 {
			continue
		}
		files := copied(t, path) // as a kill leaves it
		next := require.Value(Open(files, Options{Worker: 9, Servers: 2}))(t)
		if got := next.Messages(); !sameMessages(got, want) {
			t.Fatalf("after %d steps: %d messages, want %d", n, len(got), len(want))
		}
		require.NoError(t, next.CloseFile())
	}
	if l.Lost() > 0 {
		t.Errorf("%d messages could not be kept", l.Lost())
	}
	if err := l.CloseFile(); err != nil || space.Used() != 0 {
		t.Errorf("%d bytes are taken after the end, %v", space.Used(), err)
	}
}

// copied copies a ledger's files.
func copied(t *testing.T, path string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), filepath.Base(path))
	for _, suffix := range []string{"", messagesSuffix} {
		b, err := os.ReadFile(path + suffix)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		require.NoError(t, os.WriteFile(to+suffix, b, 0o600))
	}
	return to
}

// A kill, or a damaged disk, cuts the file anywhere, or changes a byte of it: the
// messages before that are there, and nothing that was never kept.
func TestMessagesThatWereCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker-9")
	l := require.Value(Open(path, Options{Worker: 9, Servers: 2}))(t)
	all := []route.Message{whole(1, route.Waits, 10), whole(2, 0, 0), whole(3, 1, 100)}
	for _, m := range all {
		l.Keep(m)
	}
	require.NoError(t, l.CloseFile())
	file := require.Value(os.ReadFile(path + messagesSuffix))(t)
	check := func(what string, at int, b []byte) {
		t.Helper()
		require.NoError(t, os.WriteFile(path+messagesSuffix, b, 0o600))
		next := require.Value(Open(path, Options{Worker: 9, Servers: 2}))(t)
		defer next.CloseFile()
		got := next.Messages()
		if len(got) > len(all) || !sameMessages(got, all[:len(got)]) && !dropped(got, all) {
			t.Errorf("%s %d: %+v", what, at, got)
		}
	}
	for at := range file {
		check("cut at", at, file[:at])
		changed := bytes.Clone(file)
		changed[at] ^= 3
		check("changed at", at, changed)
	}
}

// A byte in the middle of the file was changed: what came behind it is gone, and does
// not come back when another message of the same size takes its place.
func TestMessagesBehindADamagedOneStayAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker-9")
	space := &Space{Limit: 1 << 20}
	var l *Ledger
	reopen := func() {
		t.Helper()
		if l != nil {
			require.NoError(t, l.CloseFile())
		}
		l = require.Value(Open(path, Options{Worker: 9, Servers: 2, Space: space}))(t)
	}
	reopen()
	first, second, last := whole(1, 0, 100), whole(2, 0, 100), whole(3, 0, 100)
	for _, m := range []route.Message{first, second, last} {
		l.Keep(m)
	}
	file := require.Value(os.ReadFile(path + messagesSuffix))(t)
	file[len(file)/2] ^= 1
	require.NoError(t, os.WriteFile(path+messagesSuffix, file, 0o600))
	want := []route.Message{first}
	if reopen(); !sameMessages(l.Messages(), want) {
		t.Fatalf("after the damage: %+v", l.Messages())
	}
	l.Keep(whole(4, 0, 100))
	want = append(want, whole(4, 0, 100))
	if reopen(); !sameMessages(l.Messages(), want) {
		t.Errorf("after another was kept: %+v", l.Messages())
	}
	if err := l.CloseFile(); err != nil || space.Used() != 0 {
		t.Errorf("%d bytes are taken after the end, %v", space.Used(), err)
	}
}

// What the file had before it was written from its beginning is not read again, nor
// written behind.
func TestMessagesBeginAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker-9")
	l := require.Value(Open(path, Options{Worker: 9, Servers: 2}))(t)
	for n := range int32(9) {
		l.Keep(whole(n, 0, 100))
	}
	for n := range int32(9) {
		l.Drop(route.ID{Server: 1, Timestamp: n}, 0)
	}
	l.Keep(whole(10, 0, 100))
	end := l.messages.end
	require.NoError(t, l.CloseFile())
	next := require.Value(Open(path, Options{Worker: 9, Servers: 2}))(t)
	defer next.CloseFile()
	if got := next.Messages(); len(got) != 1 || got[0].ID.Timestamp != 10 || next.messages.end != end {
		t.Errorf("kept are %+v, the next one goes to byte %d; want %d", got, next.messages.end, end)
	}
}

// While one message waits, others come and go: the file does not grow with them.
func TestMessagesAreCompacted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker-9")
	l := require.Value(Open(path, Options{Worker: 9, Servers: 2}))(t)
	defer l.CloseFile()
	waits := whole(1, route.Waits, 1000)
	l.Keep(waits)
	for n := range int32(40) {
		l.Keep(whole(2+n, 0, mostlyDropped/8))
		l.Drop(route.ID{Server: 1, Timestamp: 2 + n}, 0)
	}
	info, err := os.Stat(path + messagesSuffix)
	if err != nil || info.Size() > 2*mostlyDropped {
		t.Errorf("the file has %d bytes, %v: at most %d, of which %d are kept", info.Size(), err, 2*mostlyDropped, l.messages.used())
	}
	if got := l.Messages(); !sameMessages(got, []route.Message{waits}) || l.Lost() > 0 {
		t.Errorf("kept are %d messages, %d are lost", len(got), l.Lost())
	}
}

// A message that cannot be marked would be done twice after a kill: all that wait go,
// and count as lost.
func TestMessagesThatCannotBeMarked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker-9")
	l := require.Value(Open(path, Options{Worker: 9, Servers: 2}))(t)
	defer l.CloseFile()
	for n := range int32(3) {
		l.Keep(whole(n, 0, 100))
	}
	read := require.Value(os.Open(path + messagesSuffix))(t) // nothing can be written there
	require.NoError(t, l.messages.file.Close())
	l.messages.file = read
	l.Drop(route.ID{Server: 1, Timestamp: 1}, 0)
	if l.Lost() != 2 || l.Whole() != 0 {
		t.Errorf("%d messages are lost, %d kept; want 2 and none", l.Lost(), l.Whole())
	}
	if _, err := os.Stat(path + messagesSuffix); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}

// dropped reports whether got is want but for one that a changed byte marks as
// dropped.
func dropped(got, want []route.Message) bool {
	for i := range want {
		if sameMessages(got, slices.Delete(slices.Clone(want), i, i+1)) {
			return true
		}
	}
	return false
}

// The folder is at its limit: what is not kept is counted, and there is room again
// when the rest is dropped.
func TestMessagesHaveALimit(t *testing.T) {
	space := &Space{Limit: headerSize + (firstGrowth)*recordSize + 4<<20}
	l := require.Value(Open(filepath.Join(t.TempDir(), "worker-9"), Options{Worker: 9, Servers: 2, Space: space}))(t)
	defer l.CloseFile()
	for n := range int32(8) {
		l.Keep(whole(n, route.Waits, 1<<20))
	}
	kept := l.Messages()
	if l.Lost() != uint64(8-len(kept)) || len(kept) == 0 || len(kept) > 4 {
		t.Fatalf("%d are kept and %d lost", len(kept), l.Lost())
	}
	for _, m := range kept {
		l.Drop(m.ID, m.Place)
	}
	l.Keep(whole(9, route.Waits, 3<<20))
	if got := l.Messages(); len(got) != 1 {
		t.Errorf("%d are kept when there is room again", len(got))
	}
}

// A request's end drops the answers to its parts, and PS_RESEND's first ACK all.
func TestMessagesEndWithTheirRequest(t *testing.T) {
	l := require.Value(Open(filepath.Join(t.TempDir(), "worker-9"), Options{Worker: 9, Servers: 2}))(t)
	defer l.CloseFile()
	l.Open(route.Kept{ID: route.ID{Server: 1, Timestamp: 1}, Own: route.FirstOwn, Owners: []int32{0, 1}})
	l.Keep(whole(1, 1, 10))
	l.Keep(whole(2, route.Waits, 10))
	l.Close(route.ID{Server: 1, Timestamp: 1})
	if got := l.Messages(); len(got) != 1 || got[0].ID.Timestamp != 2 {
		t.Errorf("kept are %+v", got)
	}
	l.UseResend()
	if got := l.Messages(); len(got) != 0 {
		t.Errorf("kept are %+v", got)
	}
}

// BenchmarkMessages keeps and drops a message of 16 KB, as a split pull has it done
// of each server's answer but one.
func BenchmarkMessages(b *testing.B) {
	l := require.Value(Open(filepath.Join(b.TempDir(), "worker-9"), Options{Worker: 9, Servers: 2}))(b)
	defer l.CloseFile()
	m := whole(1, 0, 16<<10)
	b.ReportAllocs()
	for b.Loop() {
		l.Keep(m)
		l.Drop(m.ID, m.Place)
	}
	if l.Lost() > 0 {
		b.Errorf("%d messages could not be kept", l.Lost())
	}
}
