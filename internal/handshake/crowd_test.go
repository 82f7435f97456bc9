package handshake

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// crowd opens connections that say no more than a few words.
func crowd(t *testing.T, address string, n int, words string) (all []net.Conn) {
	t.Helper()
	for len(all) < n {
		c, err := net.Dial("tcp", address)
		if errors.Is(err, syscall.ECONNRESET) {
			continue // it has made room for others before this side has looked
		}
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, words) // it may have been reset
		all = append(all, c)
	}
	return all
}

// isReset waits for the end of a connection and reports whether it was reset.
func isReset(t *testing.T, c net.Conn) bool {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := io.ReadAll(c)
	return errors.Is(err, syscall.ECONNRESET)
}
