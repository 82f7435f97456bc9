package keep

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns the two ends of a connection, that which dialed first.
func connect(t testing.TB) (dialed, accepted *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer l.Close()
	dialed = require.Value(net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr)))(t)
	accepted = require.Value(l.AcceptTCP())(t)
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	return dialed, accepted
}

// end is one end of a connection, and what its owner has done with it.
type end struct {
	*net.TCPConn
	syn           uint64
	written, read uint64
	closed        bool
}

// check waits until the kernel says of both ends what was done.
func check(t *testing.T, when string, ends ...*end) {
	t.Helper()
	for i, e := range ends {
		want := Position{Consumed: e.read, Written: e.written}
		require.Await(t, fmt.Sprintf("%s, end %d: %+v", when, i, want), func() error {
			got, err := ReadPosition(e.TCPConn, e.syn)
			if err == nil && got != want {
				err = fmt.Errorf("it is %+v", got)
			}
			return err
		})
	}
}

// What the kernel counts, SYN and FIN taken off, is what was written and read, at both
// ends, at any time: with unread bytes, after either end, or both, have closed.
func TestPositionIsWhatWasWrittenAndRead(t *testing.T) {
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 3))
		a, b := connect(t)
		ends := []*end{{TCPConn: a}, {TCPConn: b}}
		for _, e := range ends {
			e.syn = require.Value(SYN(e.TCPConn))(t)
		}
		check(t, "when new", ends...)
		for range 60 {
			i := rng.IntN(2)
			from, to := ends[i], ends[1-i]
			switch {
			case rng.IntN(30) == 0 && !from.closed:
				require.NoError(t, from.CloseWrite())
				from.closed = true
			case rng.IntN(2) == 0 && !from.closed:
				n := 1 + rng.IntN(10_000)
				require.Value(from.Write(make([]byte, n)))(t)
				from.written += uint64(n)
			case from.written > to.read:
				n := 1 + rng.IntN(int(from.written-to.read))
				require.Value(io.ReadFull(to, make([]byte, n)))(t)
				to.read += uint64(n)
			}
			check(t, "in between", ends...)
		}
		for i, e := range ends {
			if !e.closed {
				e.CloseWrite()
			}
			require.Value(io.Copy(io.Discard, ends[1-i]))(t)
			ends[1-i].read = e.written
		}
		check(t, "when both have closed", ends...)
	}
}

// Nothing leaves the queue that was not acknowledged, and then whole messages.
func TestWindowKeepsWhatWasNotAcknowledged(t *testing.T) {
	if err := Supported(); err != nil {
		require.Missing(t, "%v", err)
	}
	job, ours := connect(t)
	syn := require.Value(SYN(ours))(t)
	page := require.Value(NewPage(Meta{SYN: syn}))(t)
	defer page.Close()
	var why Reason
	w := require.Value(NewWindow(ours, page, 0, func(r Reason) { why = r }))(t)
	sent := make([]byte, 1000)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	job.Write(sent)
	read := func(n int) []byte {
		t.Helper()
		b := make([]byte, n)
		raw, _ := ours.SyscallConn()
		for got := 0; got < n; {
			raw.Read(func(fd uintptr) bool {
				k, err := w.Read(fd, b[got:])
				if err == unix.EAGAIN {
					return false
				}
				if k <= 0 || err != nil {
					t.Fatalf("read %d, %v", k, err)
				}
				got += k
				return true
			})
		}
		return b
	}
	stands := func(consumed uint64, at bool) {
		t.Helper()
		p, err := ReadPosition(ours, syn)
		if err != nil || p.Consumed != consumed {
			t.Errorf("consumed %d, %v; want %d", p.Consumed, err, consumed)
		}
		if m, err := page.Standing(p.Consumed); (m && err == nil) != at {
			t.Errorf("at %d: a message begins: %v, %v", p.Consumed, m, err)
		}
	}
	if got := read(400); !bytes.Equal(got, sent[:400]) {
		t.Error("other bytes came")
	}
	w.Sent(100, true) // 300 are on the link, where a message ends
	w.Sent(50, false)
	stands(0, true)
	w.Acked(299)
	stands(0, true)
	w.Acked(340)
	stands(300, true)
	if got := read(100); !bytes.Equal(got, sent[400:500]) {
		t.Error("other bytes came after an acknowledgement")
	}
	w.Pass() // in the midst of a message
	stands(500, false)
	if got := read(500); !bytes.Equal(got, sent[500:]) {
		t.Error("other bytes came in the midst of a message")
	}
	w.Sent(0, true)
	w.Acked(1000)
	stands(1000, true)
	job.Write(sent[:10])
	read(4)
	w.Off(Values)
	stands(1004, false)
	if got := read(6); !bytes.Equal(got, sent[4:10]) || why != Values {
		t.Errorf("other bytes came when nothing was kept any more, for %q", why)
	}
	if read, queued := w.Peeked(), w.Unacked(); read != 1010 || queued != 0 {
		t.Errorf("%d bytes were read, %d of them are in the queue, when nothing was kept any more; want 1010 and 0", read, queued)
	}
}

// A page says the same to the next proxy, and a damaged one is not believed.
func TestPageThatIsDamagedIsNotBelieved(t *testing.T) {
	m := Meta{Session: ID{1, 2, 3}, Dialed: true, Client: netip.MustParseAddrPort("10.0.0.1:5"), Destination: netip.MustParseAddrPort("[fd00::1]:8"), Job: "10.0.0.1:8000", Origin: "cgroup 1", SYN: 1}
	p := require.Value(NewPage(m))(t)
	defer p.Close()
	p.SetReady([]byte("\x05READY"))
	p.noteNext(7)
	p.done(7)
	copyOf := func() *Page {
		t.Helper()
		next := require.Value(OpenPage(duplicate(t, p)))(t)
		t.Cleanup(func() { next.Close() })
		return next
	}
	next := copyOf()
	if next.Meta() != m || string(next.Ready()) != "\x05READY" {
		t.Errorf("%+v, %q", next.Meta(), next.Ready())
	}
	for at, want := range map[uint64]bool{7: true, 0: false, 8: false} {
		if message, err := next.Standing(at); message != want || (err == nil) != want {
			t.Errorf("at %d: %v, %v", at, message, err)
		}
	}
	p.set(flagBytes)
	if message, err := next.Standing(8); message || err != nil {
		t.Errorf("at any byte: %v, %v", message, err)
	}
	p.word(0).Store(pageMagic + 1)
	if _, err := OpenPage(duplicate(t, p)); err == nil {
		t.Error("a page of another version was believed")
	}
	require.NoError(t, p.file.Truncate(100))
	if _, err := OpenPage(duplicate(t, p)); err == nil {
		t.Error("a page that was cut was believed")
	}
	p.file.Truncate(pageSize)
}

// The boundary that is taken is the last one remembered that is not beyond the offset,
// the last of all is always remembered, and no more than so many are.
func TestBoundsOfRememberedBoundaries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bounds
		var all []uint64 // every one that is not yet taken
		at := uint64(0)
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			if rapid.IntRange(0, 5).Draw(t, "step") > 0 {
				at += uint64(rapid.IntRange(0, 3).Draw(t, "size"))
				b.addBoundary(at)
				if len(all) == 0 || all[len(all)-1] != at {
					all = append(all, at)
				}
				if b.all[len(b.all)-1] != at || len(b.all) > maxBounds || !slices.IsSorted(b.all) {
					t.Fatalf("after %d: %v", at, b.all)
				}
				continue
			}
			most := uint64(rapid.IntRange(0, int(at)+2).Draw(t, "acknowledged"))
			got, ok := b.popUpTo(most)
			if ok && (got > most || !slices.Contains(all, got)) {
				t.Fatalf("up to %d: %d, of %v", most, got, all)
			}
			if len(all) > 0 && most >= all[len(all)-1] && (!ok || got != all[len(all)-1]) {
				t.Fatalf("up to %d: %d, %v; the last is %d", most, got, ok, all[len(all)-1])
			}
			all = slices.DeleteFunc(all, func(v uint64) bool { return v <= most })
		}
	})
}

// Two streams are taken up again and again, as wherever proxies are killed: whatever is
// consumed and written then, no byte is lost and none comes twice, or both ends refuse.
func TestTakeUpAgainLosesNoByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		streams := [2][]byte{}
		for i := range streams {
			streams[i] = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "stream")
		}
		var consumed [2]int // of stream i, at its sender
		var got [2][]byte   // at its receiver
		for range rapid.IntRange(1, 6).Draw(t, "links") {
			for i := range streams {
				// On this link some bytes come, of which some are acknowledged.
				from := len(got[i])
				to := rapid.IntRange(from, len(streams[i])).Draw(t, "to")
				got[i] = append(got[i], streams[i][from:to]...)
				most := to
				if rapid.IntRange(0, 9).Draw(t, "unsafe") == 0 {
					most = len(streams[i]) // moved in the kernel: it is not yet there
				}
				consumed[i] = max(consumed[i], rapid.IntRange(0, most).Draw(t, "consumed"))
			}
			offers := [2]Offer{}
			for i := range offers {
				offers[i] = Offer{Kind: Resume, Position: Position{Consumed: uint64(consumed[i]), Written: uint64(len(got[1-i]))}, Message: rapid.Bool().Draw(t, "message")}
			}
			lost := consumed[0] > len(got[0]) || consumed[1] > len(got[1])
			a, errA := Take(offers[0], offers[1])
			b, errB := Take(offers[1], offers[0])
			if (errA != nil) != lost || (errB != nil) != lost {
				t.Fatalf("lost %v: %v and %v", lost, errA, errB)
			}
			if lost {
				return
			}
			if a.Codecs != b.Codecs {
				t.Fatal("the ends differ on codecs")
			}
			for i, taken := range [2]Taken{b, a} { // the receiver's, of stream i
				if next := consumed[i] + int(taken.Skip); next != len(got[i]) {
					t.Fatalf("stream %d goes on at %d, %d are there", i, next, len(got[i]))
				}
			}
		}
	})
}

func FuzzParseOffer(f *testing.F) {
	f.Add(Offer{Kind: Resume, Session: ID{9}, Position: Position{1, 2}, Message: true}.Append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseOffer(b)
		if err == nil && !bytes.Equal(o.Append(nil), b) {
			t.Errorf("%x is %+v, which is %x", b, o, o.Append(nil))
		}
	})
}

func FuzzParseAck(f *testing.F) {
	f.Add(Ack{1, AckEnded, 2}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < AckSize {
			return
		}
		if a, _ := ParseAck(b[:AckSize]); !bytes.Equal(a.Append(nil), b[:AckSize]) {
			t.Errorf("%x is %+v", b, a)
		}
	})
}

// duplicate returns the page's file, as the next proxy gets it.
func duplicate(t *testing.T, p *Page) *os.File {
	t.Helper()
	fd := require.Value(unix.FcntlInt(p.file.Fd(), unix.F_DUPFD_CLOEXEC, 0))(t)
	return os.NewFile(uintptr(fd), "page")
}
