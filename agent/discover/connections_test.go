package discover

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// Of a connection whose peer reads nothing it is known that there is more to send, and
// that the peer takes nothing.
func TestConnections(t *testing.T) {
	require.Root(t)
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	c := require.Value(net.Dial("tcp", l.Addr().String()))(t)
	defer c.Close()
	peer, err := l.Accept()
	require.NoError(t, err)
	defer peer.Close()
	ends := Ends{c.LocalAddr().(*net.TCPAddr).AddrPort(), l.Addr().(*net.TCPAddr).AddrPort()}
	look := func() (Connection, bool) {
		all := require.Value(Connections("/proc/self/ns/net"))(t)
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
	require.Await(t, "the peer takes no more", func() error {
		if got, _ := look(); got.Unsent == 0 || !got.ZeroWindow {
			return fmt.Errorf("of the connection is said %+v", got)
		}
		return nil
	})
}
