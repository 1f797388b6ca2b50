//! Routes, gateways, policies, addresses: Gateway API, Istio, Cilium, Calico, Traefik, MetalLB, Contour.

pub const SHAPES: &str = r#"
kind: Gateway
names: {shortNames: [gtw], categories: [gateway-api]}
version: {subresources: {status: {}}}
columns:
- [Class, string, .spec.gatewayClassName]
- [Address, string, '.status.addresses[*].value']
- [Programmed, string, '.status.conditions[?(@.type=="Programmed")].status']
- [Age, date, .metadata.creationTimestamp]
spec:
  type: object
  required: [gatewayClassName, listeners]
  properties:
    gatewayClassName: {type: string, minLength: 1, maxLength: 253, description: Names the class.}
    listeners:
      type: array
      minItems: 1
      maxItems: 64
      x-kubernetes-list-type: map
      x-kubernetes-list-map-keys: [name]
      x-kubernetes-validations:
      - rule: "self.all(l, l.protocol in ['TCP', 'UDP'] ? (!has(l.hostname) || l.hostname == '') : true)"
        message: hostname must not be specified for protocols ['TCP', 'UDP']
      - rule: 'self.all(l1, self.exists_one(l2, l1.name == l2.name))'
        message: Listener name must be unique within the Gateway
      items:
        type: object
        required: [name, port, protocol]
        properties:
          name: {type: string, maxLength: 253, pattern: '^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'}
          hostname: {type: string, maxLength: 253, pattern: '^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'}
          port: {type: integer, format: int32, minimum: 1, maximum: 65535}
          protocol: {type: string, maxLength: 255, pattern: '^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$|[a-z0-9]([-a-z0-9]*[a-z0-9])?\/[A-Za-z0-9]+$'}
          allowedRoutes:
            type: object
            default: {namespaces: {from: Same}}
            properties:
              namespaces:
                type: object
                default: {from: Same}
                properties: {from: {type: string, enum: [All, Selector, Same], default: Same}}
status:
  type: object
  default: {conditions: [{type: Accepted, status: Unknown, reason: Pending, message: Waiting, lastTransitionTime: '1970-01-01T00:00:00Z'}]}
  properties:
    addresses:
      type: array
      maxItems: 16
      items: {type: object, required: [value], properties: {type: {type: string, default: IPAddress}, value: {type: string, minLength: 1}}}
    conditions:
      type: array
      maxItems: 8
      x-kubernetes-list-type: map
      x-kubernetes-list-map-keys: [type]
      items:
        type: object
        required: [type, status]
        properties:
          type: {type: string}
          status: {type: string, enum: ['True', 'False', Unknown]}
          reason: {type: string}
          message: {type: string}
          lastTransitionTime: {type: string, format: date-time}
object:
  spec: {gatewayClassName: big, listeners: [{name: web, port: 80, protocol: HTTP, hostname: '*.example.com'}, {name: raw, port: 9000, protocol: TCP}]}
  status: {addresses: [{value: 192.0.2.1}, {value: 192.0.2.2}], conditions: [{type: Programmed, status: 'True'}]}
stored:
  spec:
    gatewayClassName: big
    listeners:
    - {name: web, port: 80, protocol: HTTP, hostname: '*.example.com', allowedRoutes: {namespaces: {from: Same}}}
    - {name: raw, port: 9000, protocol: TCP, allowedRoutes: {namespaces: {from: Same}}}
cells: [big, 192.0.2.1, 'True', AGE]
wrong:
- [/spec/listeners/1/hostname, a.example.com, "spec.listeners: Invalid value: \"array\": hostname must not be specified for protocols ['TCP', 'UDP']"]
- [/spec/listeners/1/name, web, 'spec.listeners[1]: Duplicate value: {"name":"web"}']
- [/spec/listeners/0/hostname, 'a_b', "spec.listeners[0].hostname in body should match '^(\\*\\.)?"]
- [/spec/listeners, [], 'spec.listeners in body should have at least 1 items']
- [/spec/listeners/0/port, 70000, 'should be less than or equal to 65535']
explained:
  spec.gatewayClassName: {type: string, description: Names the class.}
  spec.listeners.allowedRoutes.namespaces.from: {default: Same, enum: [All, Selector, Same]}
---
kind: HTTPRoute
columns: [[Hostnames, string, .spec.hostnames], [Age, date, .metadata.creationTimestamp]]
spec:
  type: object
  properties:
    hostnames: {type: array, maxItems: 16, items: {type: string, minLength: 1, maxLength: 253}}
    parentRefs:
      type: array
      maxItems: 32
      x-kubernetes-list-type: atomic
      items:
        type: object
        required: [name]
        properties:
          group: {type: string, default: gateway.networking.k8s.io, maxLength: 253}
          kind: {type: string, default: Gateway, maxLength: 63}
          name: {type: string, maxLength: 253}
          port: {type: integer, format: int32, maximum: 65535, minimum: 1}
      x-kubernetes-validations:
      - message: sectionName must be unique
        rule: 'self.all(p1, self.exists_one(p2, p1.group == p2.group && p1.kind == p2.kind && p1.name == p2.name))'
    rules:
      type: array
      maxItems: 16
      default: [{matches: [{path: {type: PathPrefix, value: /}}]}]
      items:
        type: object
        properties:
          matches:
            type: array
            maxItems: 64
            default: [{path: {type: PathPrefix, value: /}}]
            items:
              type: object
              properties:
                path:
                  type: object
                  default: {type: PathPrefix, value: /}
                  properties:
                    type: {type: string, default: PathPrefix, enum: [Exact, PathPrefix, RegularExpression]}
                    value: {type: string, default: /, maxLength: 1024}
                  x-kubernetes-validations:
                  - rule: "(self.type in ['Exact','PathPrefix']) ? self.value.startsWith('/') : true"
                    message: value must be an absolute path and start with '/' when type one of ['Exact', 'PathPrefix']
          backendRefs:
            type: array
            maxItems: 16
            items:
              type: object
              required: [name]
              properties:
                name: {type: string, maxLength: 253}
                group: {type: string, default: '', maxLength: 253}
                kind: {type: string, default: Service, maxLength: 63}
                port: {type: integer, minimum: 1, maximum: 65535}
                weight: {type: integer, format: int32, default: 1, minimum: 0, maximum: 1000000}
              x-kubernetes-validations:
              - message: Must have port for Service reference
                rule: "(size(self.group) == 0 && self.kind == 'Service') ? has(self.port) : true"
object:
  spec: {hostnames: [a.example.com, b.example.com], parentRefs: [{name: gw}], rules: [{backendRefs: [{name: s, port: 80}]}]}
stored:
  spec:
    hostnames: [a.example.com, b.example.com]
    parentRefs: [{name: gw, group: gateway.networking.k8s.io, kind: Gateway}]
    rules:
    - backendRefs: [{name: s, port: 80, group: '', kind: Service, weight: 1}]
      matches: [{path: {type: PathPrefix, value: /}}]
cells: ['["a.example.com","b.example.com"]', AGE]
wrong:
- [/spec/rules/0/backendRefs/0, {name: s}, 'spec.rules[0].backendRefs[0]: Invalid value: "object": Must have port for Service reference']
- [/spec/rules/0/matches, [{path: {value: x}}], "value must be an absolute path and start with '/'"]
- [/spec/parentRefs, [{name: gw}, {name: gw}], sectionName must be unique]
explained: {spec.rules.backendRefs.weight: {default: 1, format: int32}}
---
kind: DestinationRule
columns: [[Host, string, .spec.host]]
spec:
  type: object
  required: [host]
  properties:
    host: {type: string}
    trafficPolicy:
      type: object
      properties:
        loadBalancer:
          type: object
          oneOf:
          - not: {anyOf: [{required: [simple]}, {required: [consistentHash]}]}
          - {required: [simple]}
          - {required: [consistentHash]}
          properties:
            simple: {type: string, enum: [UNSPECIFIED, RANDOM, ROUND_ROBIN, LEAST_REQUEST]}
            consistentHash:
              type: object
              properties: {httpHeaderName: {type: string}, minimumRingSize: {type: integer, minimum: 0}}
            warmup:
              type: object
              required: [duration]
              properties:
                duration: {type: string, x-kubernetes-validations: [{rule: "duration(self) >= duration('1ms')", message: must be a valid duration greater than 1ms}]}
                aggression: {type: number, format: double, minimum: 1, nullable: true}
        port: {type: object, properties: {number: {type: integer, maximum: 4294967295, minimum: 0}}}
status: {type: object, x-kubernetes-preserve-unknown-fields: true}
object:
  spec: {host: reviews, trafficPolicy: {loadBalancer: {simple: RANDOM, warmup: {duration: 10s, aggression: null}}, port: {number: 4294967295}}}
  status: {anything: [1, {goes: true}]}
cells: [reviews]
wrong:
- [/spec/trafficPolicy/loadBalancer/consistentHash, {httpHeaderName: x}, must validate one and only one schema (oneOf). Found 2 valid alternatives]
- [/spec/trafficPolicy/loadBalancer/warmup/duration, 1us, must be a valid duration greater than 1ms]
- [/spec/trafficPolicy/port/number, 4294967296, should be less than or equal to 4294967295]
- [/spec/hosts, x, 'unknown field "spec.hosts"']
explained: {spec.trafficPolicy.loadBalancer.warmup.aggression: {nullable: true, format: double}}
---
kind: NetworkRule
names: {shortNames: [cnp]}
columns: [[Age, date, .metadata.creationTimestamp], [Valid, string, ".status.conditions[?(@.type=='Valid')].status"]]
root:
  properties:
    specs: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}
  anyOf: [{properties: {spec: {}}, required: [spec]}, {properties: {specs: {}}, required: [specs]}]
spec:
  type: object
  properties:
    endpointSelector:
      type: object
      x-kubernetes-map-type: atomic
      properties: {matchLabels: {type: object, additionalProperties: {type: string, maxLength: 63, pattern: '^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$'}}}
    egress:
      type: array
      items:
        type: object
        properties:
          toCIDR: {type: array, items: {type: string, format: cidr}}
          toPorts:
            type: array
            items:
              type: object
              properties:
                port: {type: string, maxLength: 63, pattern: '^(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[0-9]{1,4})|([a-zA-Z0-9]-?)*[a-zA-Z](-?[a-zA-Z0-9])*$'}
                protocol: {type: string, enum: [TCP, UDP, SCTP, ANY]}
          toFQDNs: {type: array, items: {type: object, properties: {matchPattern: {type: string, pattern: '^([-a-zA-Z0-9_*]+[.]?)+$'}}}}
status:
  type: object
  properties:
    conditions:
      type: array
      x-kubernetes-list-type: map
      x-kubernetes-list-map-keys: [type]
      items: {type: object, required: [type, status], properties: {type: {type: string}, status: {type: string}}}
object:
  spec: {endpointSelector: {matchLabels: {a: b}}, egress: [{toCIDR: [10.0.0.0/8], toPorts: [{port: '443', protocol: TCP}], toFQDNs: [{matchPattern: '*.example.com'}]}]}
  status: {conditions: [{type: Valid, status: 'True'}]}
cells: [AGE, 'True']
wrong:
- [/spec/egress/0/toCIDR, [10.0.0.0/33], 'must be of type cidr: "10.0.0.0/33"']
- [/spec/egress/0/toPorts/0/protocol, ICMP, 'Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP", "ANY"']
- [/spec/egress/0/toFQDNs/0/matchPattern, 'a b', should match]
---
kind: IPPool
scope: Cluster
spec:
  type: object
  required: [cidr]
  properties:
    cidr: {type: string, format: cidr}
    blockSize: {type: integer}
    natOutgoing: {type: boolean}
    vxlanMode: {type: string, enum: [Never, Always, CrossSubnet, '']}
    numPorts:
      x-kubernetes-int-or-string: true
      anyOf: [{type: integer}, {type: string}]
      pattern: '^.*'
    allowedUses: {type: array, items: {type: string, enum: [Workload, Tunnel]}, x-kubernetes-list-type: set}
object: {spec: {cidr: '10.1.0.0/16', blockSize: 26, vxlanMode: '', numPorts: '80:90', allowedUses: [Workload, Tunnel]}}
cells: []
wrong:
- [/spec/numPorts, 1.5, 'must be of type integer,string: "number"']
- [/spec/allowedUses, [Tunnel, Tunnel], 'spec.allowedUses[1]: Duplicate value: "Tunnel"']
explained: {spec.numPorts: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}}
---
kind: IngressRoute
spec:
  type: object
  required: [routes]
  properties:
    entryPoints: {type: array, items: {type: string}}
    routes:
      type: array
      items:
        type: object
        required: [match]
        properties:
          match: {type: string}
          kind: {type: string, enum: [Rule]}
          priority: {type: integer, maximum: 9223372036854774807}
          services:
            type: array
            items:
              type: object
              required: [name]
              properties:
                name: {type: string}
                port: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
                weight: {type: integer, minimum: 0}
                sticky: {type: object, properties: {cookie: {type: object, properties: {sameSite: {type: string, enum: [none, lax, strict]}}}}}
object: {spec: {entryPoints: [web], routes: [{match: 'Host(`a`) && Path(`/`)', kind: Rule, priority: 9223372036854774807, services: [{name: s, port: web}, {name: t, port: 80}]}]}}
wrong:
- [/spec/routes, null, 'spec.routes: Required value']
- [/spec/routes/0/priority, 9223372036854775807, should be less than or equal to]
---
kind: IPAddressPool
columns: [[Auto Assign, boolean, .spec.autoAssign], [Avoid Buggy IPs, boolean, .spec.avoidBuggyIPs], [Addresses, string, .spec.addresses], [Last, string, '.spec.addresses[-1:]']]
spec:
  type: object
  required: [addresses]
  properties:
    addresses: {type: array, items: {type: string}}
    autoAssign: {type: boolean, default: true}
    avoidBuggyIPs: {type: boolean, default: false}
    serviceAllocation:
      type: object
      properties:
        priority: {type: integer}
        serviceSelectors: {type: array, items: {type: object, x-kubernetes-map-type: atomic, properties: {matchLabels: {type: object, additionalProperties: {type: string}}}}}
object: {spec: {addresses: [192.0.2.0/28, 198.51.100.1-198.51.100.9], serviceAllocation: {priority: 5, serviceSelectors: null}}}
stored:
  spec: {addresses: [192.0.2.0/28, 198.51.100.1-198.51.100.9], serviceAllocation: {priority: 5}, autoAssign: true, avoidBuggyIPs: false}
cells: [true, false, '["192.0.2.0/28","198.51.100.1-198.51.100.9"]', 198.51.100.1-198.51.100.9]
"#;
