package faults

import (
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// chartLimits returns the memory that the chart gives each service.
func chartLimits(t *testing.T) map[string]int64 {
	t.Helper()
	text := require.Value(os.ReadFile(filepath.Join("..", "..", "deploy", "chart", "values.yaml")))(t)
	type part struct {
		Resources struct{ Limits struct{ Memory string } }
	}
	var values struct{ Agent, Proxy, Planner part }
	require.NoError(t, yaml.Unmarshal(text, &values))
	limits := map[string]int64{}
	for name, p := range map[string]part{"agent": values.Agent, "proxy": values.Proxy, "planner": values.Planner} {
		q, err := resource.ParseQuantity(p.Resources.Limits.Memory)
		if err != nil {
			t.Fatalf("the memory of %s in the chart: %v", name, err)
		}
		limits[name] = q.Value()
	}
	return limits
}

// limitMemory limits the memory of a service, where there is a limit.
func (f *fleet) limitMemory(name string, h *hosts.Host) *hoststest.MemoryGroup {
	f.t.Helper()
	limit := f.config.memory[name]
	if limit == 0 {
		return nil
	}
	g := require.Value(hoststest.LimitMemory(f.t, h, name, limit))(f.t)
	return g
}

// withinLimits checks that no service was killed for want of memory, or has ended
// at all, and says how much each has held.
func (f *fleet) withinLimits(before map[*service]int) {
	f.t.Helper()
	for _, s := range f.everything() {
		limit := f.config.memory[s.Group]
		peak := require.Value(s.memory.Peak())(f.t)
		own := int64(s.peak(f.t))
		f.t.Logf("%v held %d MiB, with what the kernel keeps for it %d of %d", s, own>>20, peak>>20, limit>>20)
		if most := max(own, peak); most > limit {
			f.t.Errorf("%v held %d MiB, the chart gives it %d", s, most>>20, limit>>20)
		}
		if n, err := s.memory.Kills(); err != nil || n > 0 {
			f.t.Errorf("%v was killed %d times for want of memory, %v", s, n, err)
		}
		if s.Current().Pid() != before[s] {
			f.t.Errorf("%v has ended and was started again", s)
		}
	}
}

// pids are the present processes of all services.
func (f *fleet) pids() map[*service]int {
	all := map[*service]int{}
	for _, s := range f.everything() {
		all[s] = s.Current().Pid()
	}
	return all
}
