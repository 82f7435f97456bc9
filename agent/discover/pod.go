package discover

import "strings"

// Pod returns the pod UID and container id in a cgroup path, both empty if it does not belong
// to a Kubernetes pod. It knows the layouts of the kubelet's two cgroup drivers, systemd and
// cgroupfs:
//
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
//	/kubepods/burstable/pod<uid>/<id>
//
// The path need not start at kubepods: in nested setups such as kind, the kubelet's cgroups lie
// below others.
func Pod(cgroup string) (pod, container string) {
	parts := strings.Split(strings.Trim(cgroup, "/"), "/")
	under := false
	for i, part := range parts {
		switch {
		case part == "kubepods" || strings.HasPrefix(part, "kubepods.slice"):
			under = true
		case !under:
		case strings.HasSuffix(part, ".slice") && strings.Contains(part, "-pod"):
			_, uid, _ := strings.Cut(strings.TrimSuffix(part, ".slice"), "-pod")
			return strings.ReplaceAll(uid, "_", "-"), containerOf(parts[i+1:])
		case strings.HasPrefix(part, "pod"):
			return strings.TrimPrefix(part, "pod"), containerOf(parts[i+1:])
		}
	}
	return "", ""
}

// containerOf returns the container id in the first element below the pod's cgroup.
func containerOf(parts []string) string {
	if len(parts) == 0 {
		return ""
	}
	id := strings.TrimSuffix(parts[0], ".scope")
	if at := strings.LastIndexByte(id, '-'); at >= 0 {
		id = id[at+1:] // cri-containerd-, crio-, docker-
	}
	return id
}
