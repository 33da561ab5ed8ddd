{{- define "heterps.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* RELEASE-heterps, or RELEASE alone if it says heterps already. 50 characters leave room for suffixes. */ -}}
{{- define "heterps.fullname" -}}
{{- $name := include "heterps.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "heterps.selector" -}}
app.kubernetes.io/name: {{ include "heterps.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "heterps.ownLabels" -}}
{{ include "heterps.selector" . }}
app.kubernetes.io/part-of: heterps
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "heterps.labels" -}}
{{- merge (include "heterps.ownLabels" . | fromYaml) .Values.commonLabels | toYaml }}
{{- end }}

{{- define "heterps.podLabels" -}}
{{- merge (include "heterps.ownLabels" . | fromYaml) .Values.podLabels .Values.commonLabels | toYaml }}
{{- end }}

{{- /* Labels of an alert: the severity, which the chart's user may replace. Arguments: the root, the severity. */ -}}
{{- define "heterps.alertLabels" -}}
{{- merge (dict) (index . 0).Values.metrics.prometheusRule.alertLabels (dict "severity" (index . 1)) | toYaml }}
{{- end }}

{{- define "heterps.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "heterps.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: must be given if serviceAccount.create is false; name an account that exists" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "heterps.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* Namespaces whose jobs the operator manages, as JSON; none: all. */ -}}
{{- define "heterps.namespaces" -}}
{{- $own := ternary (list .Release.Namespace) list (eq .Values.scope "namespace") }}
{{- default $own .Values.watchNamespaces | toJson }}
{{- end }}

{{- /* What the operator does in the namespaces of jobs. tests/heterps_operator/controller/test_rights.py uses each verb. */ -}}
{{- define "heterps.jobRules" -}}
# delete: runPolicy.ttlSecondsAfterFinished. Only `status` is written, the spec belongs to the user.
- apiGroups: [heterps.io]
  resources: [heterpsjobs]
  verbs: [list, watch, delete]
- apiGroups: [heterps.io]
  resources: [heterpsjobs/status]
  verbs: [patch]
# Where OwnerReferencesPermissionEnforcement is on, owner references that block deletion need it.
- apiGroups: [heterps.io]
  resources: [heterpsjobs/finalizers]
  verbs: [update]
# get: whose pod has the name that a process needs.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# `update` replaces the state of a job by its resource version. Users may only read it (docs/decisions/0028-tenants.md).
- apiGroups: [heterps.io]
  resources: [heterpsjobstates]
  verbs: [get, create, update]
# Plans, run configurations and profiles. List finds profiles that were not used for long.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, create, patch, delete]
# Server-side apply needs patch, and create for a new object. The garbage collector deletes them with their job.
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch]
# A job's token (docs/decisions/0027-rights.md).
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
# List tells why a pod does not start: some reasons are in no status.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch]
- apiGroups: [scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, create, patch]
# Requests for quota (docs/decisions/0032-quota.md). Their status tells Kueue which pods are gone.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, create, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}

{{- /* The same for DevicePools with a deviceClassName, if dynamicResourceAllocation.enabled: how a job's pods claim devices. */ -}}
{{- define "heterps.deviceJobRules" -}}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, create, patch]
{{- end }}

{{- /* What the active replica does in the operator's own namespace. */ -}}
{{- define "heterps.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
{{- end }}

{{- /* What belongs to no namespace. */ -}}
{{- define "heterps.clusterRules" -}}
- apiGroups: [heterps.io]
  resources: [devicepools]
  verbs: [list, watch]
- apiGroups: [heterps.io]
  resources: [devicepools/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
# Kueue expects the priority of a job as a number.
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloadpriorityclasses]
  verbs: [get]
{{- end }}

{{- /* The same for DevicePools with a deviceClassName: which devices there are, and which ones other pods have. */ -}}
{{- define "heterps.deviceClusterRules" -}}
- apiGroups: [resource.k8s.io]
  resources: [deviceclasses, resourceslices, resourceclaims]
  verbs: [list, watch]
{{- end }}
