package bpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// builds names the builds of the programs that this kernel can load.
func builds(t testing.TB) []string {
	t.Helper()
	err := features.HaveProgramHelper(ebpf.CGroupSKB, asm.FnLoop)
	if errors.Is(err, ebpf.ErrNotSupported) {
		return []string{"follow"}
	}
	if err != nil {
		t.Fatal(err)
	}
	return []string{"watch"}
}
