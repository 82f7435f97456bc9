package discover

import "strings"

// Pod returns the pod UID and the container id that a cgroup path names, empty
// where it is no Kubernetes pod's. Both of the kubelet's ways to lay out
// cgroups are known:
//
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
//	/kubepods/burstable/pod<uid>/<id>
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

// containerOf returns the id in the part of the path below the pod's.
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
