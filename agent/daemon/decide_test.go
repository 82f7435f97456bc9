package daemon

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

func TestDecide(t *testing.T) {
	d := Connection{Dialect: pslite.DMLC}
	k := kernel{received: 110, quiet: time.Second}
	a := around{proxy: true, peer: true}
	for name, c := range map[string]struct {
		change func()
		want   Reason
	}{
		"at rest":                            {func() {}, ReasonDue},
		"no message seen":                    {func() { d.Dialect = pslite.Unknown }, ReasonUnheard},
		"BytePS":                             {func() { d.Dialect = pslite.BytePSRaw }, ReasonBothWays},
		"messages come back":                 {func() { k.received = 513 }, ReasonBothWays},
		"handshake not over":                 {func() { k.received = 63 }, ReasonBusy},
		"no proxy":                           {func() { a.proxy = false }, ReasonNoProxy},
		"none at the other host":             {func() { a.peer = false }, ReasonNoPeer},
		"its link is fast":                   {func() { a.fast = true }, ReasonFast},
		"nothing to be taken in by":          {func() { a.fast, a.proxy = true, false }, ReasonNoProxy},
		"ended before":                       {func() { a.again = true }, ReasonAgain},
		"something waits in the socket":      {func() { k.waiting = true; a.waiting = time.Hour }, ReasonBusy},
		"just wrote":                         {func() { k.quiet = 0 }, ReasonBusy},
		"never quiet, for long":              {func() { k.quiet, a.waiting = 0, patience }, ReasonDue},
		"never quiet, not heard of for long": {func() { k.quiet, a.waiting, d.Dialect = 0, patience, pslite.Unknown }, ReasonUnheard},
	} {
		d0, k0, a0 := d, k, a
		c.change()
		if got := decide(d, k, a); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		d, k, a = d0, k0, a0
	}
}

func TestWaitsWith(t *testing.T) {
	for text, want := range map[string]bool{
		"running\n":                              false,
		"-1 0x7ffd 0x7f12\n":                     false,
		"202 0x7 0x80 0x2 0x0 0x0 0x0 0x1 0x2\n": false, // a futex, whose first argument is like an epoll's number
	} {
		if got := waitsWith(text, 7); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// An epoll tells of a signal that came before another after it, once that was put
// behind, and has it as it was.
func TestPutBehind(t *testing.T) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(epoll)
	var files []int
	for i := range 3 {
		f := require.Value(unix.Eventfd(0, unix.EFD_NONBLOCK))(t)
		defer unix.Close(f)
		require.NoError(t, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, f, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(100 + i), Pad: -7}))
		files = append(files, f)
	}
	for _, f := range files {
		require.Value(unix.Write(f, []byte{1, 0, 0, 0, 0, 0, 0, 0}))(t)
	}
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
		mine, err := unix.FcntlInt(uintptr(files[0]), unix.F_DUPFD_CLOEXEC, files[2]+1)
		if err != nil {
			return err
		}
		return putBehind(epoll, mine, watched{files[0], unix.EPOLLIN, uint64(100) | 0xfffffff9<<32})
	})
	require.NoError(t, err)
	var events [8]unix.EpollEvent
	n, err := unix.EpollWait(epoll, events[:], 0)
	if err != nil || n != 3 {
		t.Fatalf("%d events, %v", n, err)
	}
	for i, want := range []int32{101, 102, 100} {
		if events[i].Fd != want || events[i].Pad != -7 {
			t.Errorf("event %d is of %d, %d; want %d", i, events[i].Fd, events[i].Pad, want)
		}
	}
}
