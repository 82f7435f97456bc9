package relay

import "golang.org/x/sys/unix"

// floorFrom is how many missing bytes are worth telling the kernel of them: less
// than a packet's, and more than a frame's header, of which it is not known how
// many come.
const floorFrom = 1 << 10

// expect notes what a step waits for: so many bytes are certain to come before
// the stream can end in order.
func (in *input) expect(v verdict) {
	in.want = 0
	if missing := v.need - (in.w - in.r); missing > 0 {
		in.want = missing
	} else if v.move > 0 {
		in.want = int(min(v.move, baseBuffer))
	}
}

// setFloor has the socket wake its reader only when want bytes have come, where
// they are worth it, and not for each packet (SO_RCVLOWAT): on a slow link a
// wake-up for each costs more than all else that is done for a message of some
// kilobytes. The stream's end, an error and a full receive buffer wake it too.
func (in *input) setFloor(fd, want int) {
	floor := 0
	if want >= floorFrom {
		floor = min(want, max(baseBuffer, len(in.buf))-in.w)
	}
	if floor == in.floor {
		return
	}
	// A socket that cannot be told wakes for each packet.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, max(1, floor)) == nil {
		in.floor = floor
	}
}

// noFloor is for others who read from the connection.
func (in *input) noFloor() {
	if in.floor > 0 {
		_ = in.raw.Control(func(fd uintptr) { in.setFloor(int(fd), 0) }) // a closed one wakes by itself
	}
}
