package train

import (
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/test/require"
)

func TestMix(t *testing.T) {
	for name, test := range map[string]struct {
		resend bool
		change func(*Options)
	}{
		"apps and customers": {},
		"nothing but empty":  {change: func(o *Options) { o.Mix.Longest = 0 }},
		"a large value":      {change: func(o *Options) { o.Mix.Largest = 3 << 20 }},
		"lost and repeated":  {resend: true, change: func(o *Options) { o.Mix.Customers = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			c, o := config(t, 3, 2), defaults("mix")
			o.Steps = 10
			if test.change != nil {
				test.change(&o)
			}
			if test.resend {
				c.Resend, c.ResendTimeout, c.Drop = true, 20*time.Millisecond, 10
			}
			for _, r := range mustRun(t, c, o) {
				if r.Steps != 10 || r.Checked == 0 {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// A request that overtakes another must not pass unnoticed.
func TestMixNoticesWrongOrder(t *testing.T) {
	st := require.Value(kv.NewStore(kv.StoreSettings{Rule: "add"}))(t)
	h := &mixHandler{Store: st, last: map[uint64]int32{}}
	push := func(head int32) error { return h.Push(head, []uint64{7}, []float32{1}, nil) }
	for _, head := range []int32{1, 2, 0, 3} { // 0 is not numbered
		require.NoError(t, push(head))
	}
	if err := push(5); err == nil || !strings.Contains(err.Error(), "push 5") {
		t.Errorf("push 5 after 3: %v", err)
	}
}
