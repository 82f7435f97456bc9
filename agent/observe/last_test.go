package observe

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Of workers of this host that say to the scheduler, past a proxy, that they push no
// more, it is told who they are; of barriers that a proxy carries, of those among
// workers and of servers' it is not.
func TestLastPushes(t *testing.T) {
	scheduler, proxy := netip.MustParseAddrPort("198.18.0.1:9000"), netip.MustParseAddrPort("127.0.0.1:40123")
	local := netip.MustParseAddrPort("198.18.0.2:50000")
	all := pslite.Control{Cmd: pslite.Barrier, BarrierGroup: pslite.ServerGroup | pslite.WorkerGroup | pslite.SchedulerID}
	instances, workers := all, all
	instances.Cmd, workers.BarrierGroup = pslite.InstanceBarrier, pslite.WorkerGroup
	for name, c := range map[string]struct {
		node    int32
		peer    netip.AddrPort // of the socket
		ingress bool
		meta    pslite.Meta
		want    []int32
	}{
		"PS-lite's":       {9, scheduler, false, pslite.Meta{Request: true, Control: all}, []int32{9}},
		"BytePS's":        {11, scheduler, false, pslite.Meta{Request: true, Control: instances}, []int32{11}},
		"carried":         {9, proxy, false, pslite.Meta{Request: true, Control: all}, nil},
		"among workers":   {9, scheduler, false, pslite.Meta{Request: true, Control: workers}, nil},
		"a server's":      {8, scheduler, false, pslite.Meta{Request: true, Control: all}, nil},
		"of another host": {9, scheduler, true, pslite.Meta{Request: true, Control: all}, nil},
		"let go":          {9, scheduler, false, pslite.Meta{Control: all}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var told []int32
			o := New(Options{LastPush: func(of netip.AddrPort, node int32) {
				if of != scheduler {
					t.Errorf("of the job of %s", of)
				}
				told = append(told, node)
			}})
			j := o.job(scheduler)
			j.addNode(roleScheduler).setAddress(scheduler)
			direction := bpf.Egress
			if c.ingress {
				direction = bpf.Ingress
			}
			s := &stream{id: bpf.NewStreamID(7, direction), from: local, to: scheduler, ends: [2]netip.AddrPort{local, c.peer}, identity: c.node}
			o.readControl(s, &c.meta, 1)
			if !slices.Equal(told, c.want) {
				t.Errorf("told of %v, want %v", told, c.want)
			}
		})
	}
}
