package jobs

import (
	"testing"

	"github.com/psidecar/psidecar/proxy/relay"
)

// Values are kept up to the limit, and only as far as the proxy's memory allows; what is released can be had again.
func TestSpareKeeping(t *testing.T) {
	const n = 100 << 10             // the proxy's memory counts what is larger than 64 KiB
	whole := relay.NewMemory(8 * n) // half of which may be kept from message to message
	k := spareKeeping{limit: 3 * n, whole: whole}
	for i := range 3 {
		if !k.TryReserve(n) {
			t.Fatalf("no memory after %d bytes, of %d", i*n, k.limit)
		}
	}
	if k.TryReserve(1) {
		t.Error("more was reserved than the limit")
	}
	if !whole.TryReserve(n) || whole.TryReserve(n) {
		t.Error("what is kept does not count towards the proxy's memory")
	}
	k.Unreserve(n)
	if !whole.TryReserve(n) {
		t.Error("what is kept no more still counts towards the proxy's memory")
	}
	if k.TryReserve(n) || k.bytes != 2*n {
		t.Errorf("%d bytes are kept, though the proxy has no memory for them", k.bytes)
	}
	whole.Unreserve(n)
	if !k.TryReserve(n) {
		t.Error("there is memory again")
	}
}
