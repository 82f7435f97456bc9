package discover

import (
	"net"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// Of a connection whose peer reads nothing it is known that there is more to send, and
// that the peer takes nothing.
func TestConnections(t *testing.T) {
	require.Root(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	ends := Ends{c.LocalAddr().(*net.TCPAddr).AddrPort(), l.Addr().(*net.TCPAddr).AddrPort()}
	look := func() (Connection, bool) {
		all, err := Connections("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		_, back := all[Ends{ends.Peer, ends.Local}]
		got, found := all[ends]
		return got, found && back
	}
	if got, found := look(); !found || got.Unsent != 0 || got.ZeroWindow {
		t.Fatalf("both ends found: %v, of one %+v", found, got)
	}
	c.SetWriteDeadline(time.Now().Add(time.Second))
	for err = nil; err == nil; { // until neither side's buffers take more
		_, err = c.Write(make([]byte, 1<<20))
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got, _ := look()
		if got.Unsent > 0 && got.ZeroWindow {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the peer takes no more, and of the connection is said %+v", got)
		}
	}
}
