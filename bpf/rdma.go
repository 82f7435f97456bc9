package bpf

import (
	"fmt"
	"strings"
)

// CheckRDMA returns why the traffic of vans without sockets (PS-lite's ibverbs, ucx and fabric
// vans) cannot be watched on a host. So far it cannot be watched anywhere: ibv_post_send is an
// inline function of <infiniband/verbs.h> that jumps through a table into the device's provider
// library (libmlx5 and so on), where the target has no exported symbol. A uprobe would have to
// be placed by hand in each build of each provider, and would see work requests, not bytes,
// which the network card fetches by itself.
func CheckRDMA(f Facts) error {
	detail := "no RDMA device here either"
	if len(f.RDMADevices) > 0 {
		detail = fmt.Sprintf("the host has %s; jobs that use it (DMLC_PS_VAN_TYPE=ibverbs, DMLC_ENABLE_RDMA) are not seen",
			strings.Join(f.RDMADevices, ", "))
	} else if !f.UprobePMU {
		detail += ", nor uprobes"
	}
	return &MissingError{What: "a way to watch RDMA traffic", Detail: detail}
}

func rdma(f Facts) Finding {
	missing := CheckRDMA(f).(*MissingError)
	return bad("RDMA", false, "not supported here", *missing,
		"run the job over TCP (DMLC_PS_VAN_TYPE=zmq) to watch it", "watching all jobs that use sockets")
}
