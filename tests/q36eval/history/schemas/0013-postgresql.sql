SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.asked (
    id bigint NOT NULL,
    probe character varying NOT NULL,
    item_group character varying NOT NULL,
    item_key character varying NOT NULL
);
CREATE SEQUENCE public.asked_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.asked_id_seq OWNED BY public.asked.id;
CREATE TABLE public.blessings (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    owner character varying NOT NULL,
    reason text NOT NULL,
    at character varying NOT NULL,
    revoked character varying,
    revoked_by character varying,
    revoked_why text
);
CREATE SEQUENCE public.blessings_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.blessings_id_seq OWNED BY public.blessings.id;
CREATE TABLE public.earlier_decisions (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    replaced character varying NOT NULL,
    report bigint NOT NULL,
    circumstances bigint
);
CREATE SEQUENCE public.earlier_decisions_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.earlier_decisions_id_seq OWNED BY public.earlier_decisions.id;
CREATE TABLE public.engine_events (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    at character varying NOT NULL,
    kind character varying NOT NULL,
    message text NOT NULL
);
CREATE SEQUENCE public.engine_events_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.engine_events_id_seq OWNED BY public.engine_events.id;
CREATE TABLE public.items (
    run integer NOT NULL,
    asked bigint NOT NULL,
    "position" integer NOT NULL,
    must_pass boolean NOT NULL,
    flip smallint,
    errored boolean NOT NULL,
    question bigint NOT NULL,
    answer bigint NOT NULL
);
CREATE TABLE public.measurements (
    run integer NOT NULL,
    metric integer NOT NULL,
    "position" integer NOT NULL,
    reading integer NOT NULL,
    value double precision,
    reference_value double precision,
    effect double precision,
    lower double precision,
    upper double precision,
    scored integer NOT NULL,
    errored integer NOT NULL,
    note text NOT NULL,
    not_finite json,
    value_interval json,
    clusters bigint,
    competence bigint,
    causes json,
    unreadable integer NOT NULL
);
CREATE TABLE public.metrics (
    id integer NOT NULL,
    probe character varying NOT NULL,
    metric character varying NOT NULL,
    slice character varying NOT NULL
);
CREATE SEQUENCE public.metrics_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.metrics_id_seq OWNED BY public.metrics.id;
CREATE TABLE public.probe_failures (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    probe character varying NOT NULL,
    kind character varying NOT NULL,
    reason text NOT NULL
);
CREATE SEQUENCE public.probe_failures_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.probe_failures_id_seq OWNED BY public.probe_failures.id;
CREATE TABLE public.readings (
    id integer NOT NULL,
    unit character varying NOT NULL,
    direction character varying NOT NULL,
    estimator character varying NOT NULL,
    level double precision NOT NULL,
    method character varying NOT NULL
);
CREATE SEQUENCE public.readings_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.readings_id_seq OWNED BY public.readings.id;
CREATE TABLE public.run_progress (
    run_id character varying NOT NULL,
    stage text NOT NULL,
    done integer NOT NULL,
    total integer NOT NULL,
    at character varying NOT NULL
);
CREATE TABLE public.runs (
    number integer NOT NULL,
    id character varying NOT NULL,
    family character varying NOT NULL,
    branch character varying NOT NULL,
    state character varying NOT NULL,
    started character varying NOT NULL,
    finished character varying,
    verdict character varying,
    policy_name character varying,
    lanes json,
    waived boolean NOT NULL,
    awaiting_sign_off boolean NOT NULL,
    exit_code integer,
    imported character varying,
    checkpoint_sha256 character varying,
    engine_version character varying,
    identity bigint,
    reference_identity bigint,
    policy bigint,
    suites bigint NOT NULL,
    provenance bigint NOT NULL,
    report bigint,
    circumstances bigint,
    timings bigint NOT NULL
);
CREATE SEQUENCE public.runs_number_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.runs_number_seq OWNED BY public.runs.number;
CREATE TABLE public.sign_offs (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    owner character varying NOT NULL,
    reason text NOT NULL,
    at character varying NOT NULL,
    report_sha256 character varying NOT NULL
);
CREATE SEQUENCE public.sign_offs_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.sign_offs_id_seq OWNED BY public.sign_offs.id;
CREATE TABLE public.texts (
    id bigint NOT NULL,
    sha256 bytea NOT NULL,
    data bytea NOT NULL
);
CREATE SEQUENCE public.texts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.texts_id_seq OWNED BY public.texts.id;
CREATE TABLE public.waivers (
    id integer NOT NULL,
    family character varying NOT NULL,
    branch character varying NOT NULL,
    owner character varying NOT NULL,
    reason text NOT NULL,
    criterion character varying,
    expires character varying NOT NULL,
    revoked character varying,
    canary character varying,
    slice character varying,
    added character varying NOT NULL,
    revoked_by character varying
);
CREATE SEQUENCE public.waivers_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.waivers_id_seq OWNED BY public.waivers.id;
ALTER TABLE ONLY public.asked ALTER COLUMN id SET DEFAULT nextval('public.asked_id_seq'::regclass);
ALTER TABLE ONLY public.blessings ALTER COLUMN id SET DEFAULT nextval('public.blessings_id_seq'::regclass);
ALTER TABLE ONLY public.earlier_decisions ALTER COLUMN id SET DEFAULT nextval('public.earlier_decisions_id_seq'::regclass);
ALTER TABLE ONLY public.engine_events ALTER COLUMN id SET DEFAULT nextval('public.engine_events_id_seq'::regclass);
ALTER TABLE ONLY public.metrics ALTER COLUMN id SET DEFAULT nextval('public.metrics_id_seq'::regclass);
ALTER TABLE ONLY public.probe_failures ALTER COLUMN id SET DEFAULT nextval('public.probe_failures_id_seq'::regclass);
ALTER TABLE ONLY public.readings ALTER COLUMN id SET DEFAULT nextval('public.readings_id_seq'::regclass);
ALTER TABLE ONLY public.runs ALTER COLUMN number SET DEFAULT nextval('public.runs_number_seq'::regclass);
ALTER TABLE ONLY public.sign_offs ALTER COLUMN id SET DEFAULT nextval('public.sign_offs_id_seq'::regclass);
ALTER TABLE ONLY public.texts ALTER COLUMN id SET DEFAULT nextval('public.texts_id_seq'::regclass);
ALTER TABLE ONLY public.waivers ALTER COLUMN id SET DEFAULT nextval('public.waivers_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0013');
INSERT INTO public.asked VALUES (1, 'evals', 'sums', 'a');
INSERT INTO public.asked VALUES (2, 'evals', 'sums', 'b');
INSERT INTO public.asked VALUES (3, 'evals', 'sums', 'c');
INSERT INTO public.asked VALUES (4, 'canaries', 'canary-0', 'item 0');
INSERT INTO public.asked VALUES (5, 'canaries', 'canary-0', 'item 3');
INSERT INTO public.asked VALUES (6, 'canaries', 'canary-0', 'item 6');
INSERT INTO public.asked VALUES (7, 'canaries', 'canary-0', 'item 9');
INSERT INTO public.asked VALUES (8, 'canaries', 'canary-1', 'item 1');
INSERT INTO public.asked VALUES (9, 'canaries', 'canary-1', 'item 10');
INSERT INTO public.asked VALUES (10, 'canaries', 'canary-1', 'item 4');
INSERT INTO public.asked VALUES (11, 'canaries', 'canary-1', 'item 7');
INSERT INTO public.asked VALUES (12, 'canaries', 'canary-2', 'item 11');
INSERT INTO public.asked VALUES (13, 'canaries', 'canary-2', 'item 2');
INSERT INTO public.asked VALUES (14, 'canaries', 'canary-2', 'item 5');
INSERT INTO public.asked VALUES (15, 'canaries', 'canary-2', 'item 8');
INSERT INTO public.blessings VALUES (1, '20261128-213038-64f8a0', 'eva', 'release 1', '2026-11-28T21:30:39.315509+00:00', NULL, NULL, NULL);
INSERT INTO public.earlier_decisions VALUES (1, '20261128-213038-64f8a0', '2026-11-28T21:30:38.492580+00:00', 1, 17);
INSERT INTO public.engine_events VALUES (1, '20261128-213038-64f8a0', '2026-03-01T00:00:00.000000+00:00', 'begun', 'began');
INSERT INTO public.engine_events VALUES (2, '20261128-213039-79928b', '2026-11-28T21:30:39.428744+00:00', 'retry', 'batch 0');
INSERT INTO public.items VALUES (1, 1, 0, false, NULL, false, 14, 12);
INSERT INTO public.items VALUES (1, 2, 1, false, 1, false, 11, 13);
INSERT INTO public.items VALUES (1, 3, 2, false, NULL, true, 16, 15);
INSERT INTO public.items VALUES (2, 12, 0, false, NULL, false, 25, 22);
INSERT INTO public.items VALUES (2, 9, 1, false, NULL, false, 31, 34);
INSERT INTO public.items VALUES (2, 7, 2, false, NULL, false, 21, 22);
INSERT INTO public.items VALUES (2, 15, 3, false, NULL, false, 26, 32);
INSERT INTO public.items VALUES (2, 11, 4, false, NULL, false, 37, 22);
INSERT INTO public.items VALUES (2, 6, 5, false, NULL, false, 38, 27);
INSERT INTO public.items VALUES (2, 14, 6, false, NULL, false, 30, 22);
INSERT INTO public.items VALUES (2, 10, 7, false, NULL, false, 36, 23);
INSERT INTO public.items VALUES (2, 5, 8, false, NULL, false, 35, 22);
INSERT INTO public.items VALUES (2, 13, 9, false, NULL, false, 29, 20);
INSERT INTO public.items VALUES (2, 8, 10, false, NULL, false, 33, 22);
INSERT INTO public.items VALUES (2, 4, 11, false, NULL, false, 24, 28);
INSERT INTO public.measurements VALUES (1, 2, 0, 1, 0.9, 0.9, 0, -0.022580227204857195, 0.022580227204857195, 200, 0, '', NULL, NULL, 7, 9, NULL, 0);
INSERT INTO public.measurements VALUES (1, 1, 1, 3, 0.01, 0, 0.01, -0.015607082441460918, 0.048066529983366024, 200, 0, '', NULL, NULL, 6, 10, NULL, 0);
INSERT INTO public.measurements VALUES (1, 3, 2, 2, 0, NULL, 0, 0, 0, 100, 0, '', NULL, NULL, 8, NULL, NULL, 0);
INSERT INTO public.measurements VALUES (2, 4, 0, 4, 0, NULL, 0, 0, 0, 3, 0, '', NULL, NULL, 39, NULL, NULL, 0);
INSERT INTO public.measurements VALUES (2, 3, 1, 4, 0, NULL, 0, 0, 0, 3, 0, '', NULL, NULL, 39, NULL, NULL, 0);
INSERT INTO public.metrics VALUES (1, 'canaries', 'failure_rate', 'tools');
INSERT INTO public.metrics VALUES (2, 'evals', 'accuracy', 'mmlu');
INSERT INTO public.metrics VALUES (3, 'weights', 'integrity_faults', 'all');
INSERT INTO public.metrics VALUES (4, 'weights', 'figure 0', 'all');
INSERT INTO public.probe_failures VALUES (1, '20261128-213038-64f8a0', 'kl', 'crashed', 'it broke');
INSERT INTO public.readings VALUES (1, 'unit', 'higher_is_better', 'paired_mean', 0.95, 'betting');
INSERT INTO public.readings VALUES (2, 'unit', 'lower_is_better', 'census', 0.95, 'census');
INSERT INTO public.readings VALUES (3, 'unit', 'lower_is_better', 'paired_mean', 0.95, 'betting');
INSERT INTO public.readings VALUES (4, 'faults', 'lower_is_better', 'census', 0.95, 'census');
INSERT INTO public.runs VALUES (1, '20261128-213038-64f8a0', 'sandbox', 'main', 'finished', '2026-11-28T21:30:38.185410+00:00', '2026-11-28T21:30:38.364779+00:00', 'PASS', 'small', '{"structured": "PASS", "freeform": "PASS"}', false, false, 0, NULL, 'aa', '1', 2, 2, 5, 3, 3, 1, 4, 3);
INSERT INTO public.runs VALUES (2, '20261128-213039-79928b', 'sandbox', 'fp8-head', 'finished', '2026-11-28T21:30:39.336664+00:00', '2026-11-28T21:30:39.463975+00:00', 'PASS', 'p', '{"freeform": "PASS"}', false, false, 0, NULL, NULL, NULL, NULL, NULL, 19, 18, 3, 40, NULL, 3);
INSERT INTO public.runs VALUES (3, '20261128-213039-e456c8', 'sandbox', 'main', 'running', '2026-11-28T21:30:39.495869+00:00', NULL, NULL, NULL, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 3, 3, NULL, NULL, 3);
INSERT INTO public.sign_offs VALUES (1, '20261128-213038-64f8a0', 'jan', 'read it', '2026-11-28T21:30:38.598009+00:00', '2d1ea69fcf93af801c6c1520f1e559a0e3664c602f5846cb38f20e576d491eff');
INSERT INTO public.texts VALUES (1, '\x40f9df289c5ea021ba34a33ae42e54bc0d4544f7629c77a93f0393fccdbd85bb', '\x0178f95241f52ccd97db6e9c3010865f65b552ef9a08036671effa069572d90bcb0b66e306cc0a4c0e8af2eefdc78059a21cdbb4cade2cf83433f6ff8d877b2feb46c96b1c80a1ae1841b5b529ee6854334689ced21464efc7f78b0b345c6a55d6c6eaa545df1a278bb6a480c88dc2f4c69303e3370a8fe5f85c2beb7dbaf74fde936e28dc400a7e93a1f5d256436004e2cfad6bdbbadfaecc3d7c0d66aa4eebaaed9abf34d234f5f0c806de8ace402146f9b80c09c058a760c20b644f0bdf6873b80447a04abbce14e3187dc0cc3b592910427d3d365e0771cd7bb5dea310090c3be385e95310687b2ab870e4c6f6a6d41b073c47b037ca6dc4ee9c7fd914adadd047624530fe10a7e167e3d0ed9c0c4859b0442136ea16073e588af25ad5c32c657550984b1e2c0820b276e87c688e76f281cc049b9827767c4c8818e1ff7006a6034e5e93c85fe05e9a5eeeb52316d716831d39b58e2c54e63004c0c617497bde61944fe2b4e8d43d1c8fe1b9d6d7baf64e717f5a972d855b68db0f3d795eb77d3f0fc5e3c7ac691a8add8f3dcaa30a168eb2f240b3e545aaf217a5a4724e05ad8436ec34c1b6a6d7b2aadb2529f853f249dfb58efc6494f67d3629a797708990df169a29d59eaeba08be195b752a4870fbad5275af6704e4fe6e26cd0bdf03b2c85e635f56a2574531740ad96511fb3425a8fdd3081c771f248802a0bb3b559cf8371abf4482784ee4e20991fbd659e3ec358d8b5d2a52ced294c769244412e489994914a722662cc9d39865c9736a25b7e80cde8600d50b8f168e935328621ef134e73cdd71114519997add6ec044ac7ff9824d7cbecb939cb33c15599c712e327d96bf1ba4f576c5f9dbc08a4fc18aff10ac0225857673e9809ba5e9a7c530015c28e76f2696fbd4d74089b43be3885a574ea2881a997c86d1f1a65c202d94559dd12b4ea7f241a2dcd127acce539fba9a3ec17d646c41ebeb5376d8ffbf92d893b846ab2b89bdc42bc1c3442298106912e5bb38cdd3dd293c691e65198f21fc24c93260f61e68d9cbd47ebce1995a764a29e6e7114ca409076639d767d9bb29e5f035497751c4b22c49c427a4d4b7bc8b52aad697dafd3e507a55afe8719b7dd75e918e27fd17f0125fa8db07ffd1a90ed374fa085cd59fe873fedac552534939794fc703b0addf6a0cc409d64b91abe0269da8eccdc1cab6aac2565043f01f03c1033e8afa79ff11bd2ecdfc25625b373e3efc06bd4dfa67');
INSERT INTO public.texts VALUES (2, '\x43c9a562a1b28547c772e3c4329839df2e1ab66f4bfb5b877742570c3a96c3c3', '\x0178f95241f52c4592c10ac3300c43ff25f71e56e87ec7b8ae212125098d1be860ff3e7987f62a832dc90ff1a24a6e3515a31e795ede9e8db1d76ad6923e7a3cfaba4297c846e8bced6cfacc44dc4b0130b0185299508d68efb74a033f4effeb2f6f52cd0088b308d4f2206158a1cdaee60bf8b41abe3fa5af35bd');
INSERT INTO public.texts VALUES (3, '\x44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a', '\x007b7d');
INSERT INTO public.texts VALUES (4, '\x8668c0cfc1dd05575ed80f2db3fa5f387edc9ce039b8f1c2fdd2278f11adc1da', '\x0178f95241f52c3d53ed0ac3200c7c17ff0b7e8c52f62e43dcaa4326b6336bcb287bf79dd6f6672e26b9bb988dd55009d571a1b99068b8dab0601d2844764d55ba5b6cd5d4ca5f0909008f1c604da8d8671c2315cc269bbf07218aa158b0077028544ae7402dd9ef768e341e761e8fefd111b9c1e4391d5076ef190d0c856732a3f7ecea6d248704ee126d157cc9a16c6063cee6180af7227f4ebb01f54c10b71fd78848a97aaea416bae7ddc5f75654adf83ac33e19b740f334a11f35e00f5ecb6572');
INSERT INTO public.texts VALUES (5, '\xf4c50cb2a2bc407a188dedc44da77798295db049ea5a79106d6b7bd66acdceeb', '\x0178f95241f52ced95c14ec3300c86dfa5e71d600201cf82d0e4a56e672d4daa34d99826de9ddf49cb32c1052138714c1a3bf6fffd4ecfd924ba3194865a9e4c9051f194f4561c53cf250dd97147b9e4f5bdfae3754311f28f6a905200822196e0d0f3b911d562186c2a4a6df5223e909db01e3806312aa431299039a9ba5654af25a4f84f9bd98bcba9e0c6c0062319f43832a52ce0132aeb499c4e64253c12fa1472c6a8d30a4b5b72c5a55d60ee7c181a741525e3cd830ccf22ce78d7495be821fd83368bbb3380364fbd2e67677cf42e4e3352944386ae4720c680ef4bfc8e0af1797d64e97751371e519b0ec540b9d1d18fc95286809abddf4f97d8b5c6b6473a5db6ee568dc75d0e656b4df9fee66ab96a8e2407daeaf31543623c0e3eea298832738ade67300b28438e82f015abd9541b0c0157bc96d0cfc0e010d4a1b6e31ad8edf78161f2928949f5ff4736231317c9c48a59a9ee0a19ce708fa13c6d3ac23b3c55d8cac47f09cde04f166b62373f22b6fafd792b5b7f05a4c323561379797b075bb9c8cc');
INSERT INTO public.texts VALUES (6, '\x0e5f99b3a6c123af4a808ab14f68ae4a2b18579297bb8db03576733ce7ff9d7d', '\x0178f95241f52cedd9c16a15311886e15b11dc2ae4cb4c26c9c5b8386ad1039582165c48efdd965a7b28f388bb6e8621d0febba73d33f326e7d7dea7f0b85effba7c12fcb9d7df95631deb582fd78b37e3f11739d6b1fe75b7a0188febb5af0f175b88f21f3b88e72dc9e3ef7f83fff6e6e6fafda7fb447d53de3efd7c9f8acfe3ec8febfe78d91faffbe3b63fdef6c77d7f3cf6c7131c31e10ca08134a006d6001b68036ee0adf056fd5fe1adf056782bbc15de0a6f85b7c2bbc0bbc0bbe8830cef02ef02ef02ef02ef02ef02ef0aef0aef0aefaa3b17de15de15de15de15de15de066f83b7c1dbe06d7a54c1dbe06df036781bbc1bbc1bbc1bbc1bbc1bbc9b9ecdf06ef06ef06ef076783bbc1dde0e6f87b7c3dbf53282b7c3dbe11df00e7807bc03de01ef8077c03bf4f68577c03be19df04e7827bc13de09ef8477c23b951bec0d0547517114254751731445475175146547517714854791dca92539638bb5c5dc626f31b8585c4c2e3557145da9ac4cc9d55d517845e515a557d45e517c45f515e557d45f5918d8922bc1a2068b222caab028c3a20e8b422c2ab128c5b2726f21b96a2ccab1a8c7a2208b8a2c4ab2a8c9a2288baa2c8ddb2ac915665199456916b5591467519d457916f5591468d9b8a3945c8d16455a546951a6459d16855a546a51aa45ad96cecdb4e4cab5a8d7a2608b8a2d4ab6a8d9a2688baa2dcab60c9e2348ae728bd22d6ab728dea27a8bf22deab728e0a282cbe411ca85fce19bd0d3b7f3f5f9e198ecf1ccece7d5f9cbd7db1fcf5fca7fbf3a7d3e7d7c3a54bbfb0dc0820afa');
INSERT INTO public.texts VALUES (7, '\x1ca53ae12a1568002d751bb580f79451e9c3e5a757a14398044929b25e15460e', '\x0178f95241f52cedd8cd8ad4401846e15b11afa0de4a5592ba18172d0eda30bdf10717e2bdebcc90736ad1820b61104208d46cea19baf39d24fde3de55781eaf7fcc25881538cff3fcefcff26fcffb77c6f33ccf735aee4ecb1f9e18cfe3b58f77d32b44f98b37085f495efee681ff767bfcf6a6fc7e387c5ee458d463b11c8b762cfab1588fc5762cf66331d8d0add93b6c1e760fdb87fd0310844004a36254ff7f8c8a51312a46c5a81815a3622c180bc6e28784b1602c180bc682b1602c180da361348ce63781d1301a46c368180da363748c8ed131ba5f3746c7e8181da363ac182bc68ab162ac18abd714c68ab162ac181bc686b1616c181bc686b179e1626c181bc68eb163ec183bc68eb163ec18bbd381b1630c8c81313006c6c018180363600c47709a4187b03885c5312cce6171108b93581cc5e22c1687b1a8cd23af360dfd34f5d3d84f733f0dfe34f9d3e83bfb71f853a7c2a839ff3100b1003101b1013102b1023103b10359a6a0a99982d882188358839883d883188458849884b4a99f6a56216621762186219621a621b621c621d6217dcab59a8188858889888d889188958899889d88a1c83add1dd46c458c45ac45cc45ec450c462c464c466c46b6e966a46636623762386239623a623b623c623d623eb24ff73e350b1213121b1223122b1233123b1243124b9231dd6ac7dba75f862eb7ebe3f5e9b1e1e519e2fbc3f5e3a7af5ffc91f2f3c3e5c3e5fdf190f1f3176c9d1c54');
INSERT INTO public.texts VALUES (8, '\x895712ed0be0788dfe2a2c6670d96ed0b1609056f34a163e590d6a80d37e7b44', '\x0178f95241f52cab46a4420303b4d4879ae220e62325b658447a87c8e14ee988ac03e1431326849396989b999389e097a766a6679414237209d0d129894930ddb50008ac3d8f');
INSERT INTO public.texts VALUES (9, '\x44f831a1d3ebd06bb255b6938fea8f907868ee81eac43fb6518e5ae5b7252de8', '\x0178f95241f52c8bae06a712a0486e6e4e29d0b44c606802f518811246665e5a7e516e624926280b185a0045923312c13e02bb39391118b8e0b4545e949f970ed284941a0d6a6b63017a0f1dae');
INSERT INTO public.texts VALUES (10, '\xadf4b020dfd8c61defee237a85f0ea906ad292b6e52958f3a94308c32f753115', '\x0178f95241f52c8bae06a712a048497e7e4e31d0b84c6070023519815246665e5a7e516e624926280f8045923312c15e023b3a391118bae0c4545e949f970e14454a8d06b5b5b100870a1deb');
INSERT INTO public.texts VALUES (11, '\x20ad6c528a2f37b33341efdde57d1a1a1a6aabbc819405059471df6dfe9449d8', '\x0178f95241f52c43f65e123eff1929682b1829d8a27ad384087f9aa03bb1340fe88a94c424504ec2f42500c07e2e03');
INSERT INTO public.texts VALUES (12, '\x44c32b80cee48fe8c03935ef73d53d3ba9219570dde429339f00bc20df8ae286', '\x0178f95241f52cc36aa86d726e4a4d8c927eb24272624e728c92a2a32130284a0d0c0c93a28d0d736d8a938b320b4aec1e35ac43b7be340f68434a6212289760f800007397248b');
INSERT INTO public.texts VALUES (13, '\x4839fecf90e3c9d6f97d06312bd18f9d827af28e7456e95da756c3aac7694ba6', '\x0178f95241f52cc3ea0adbe4dc949a1825fd6485e4c49ce418254547436050941a181826451b1be6da142717651694d83d6a58876e7d691ed08694c424502ec1f001007334248a');
INSERT INTO public.texts VALUES (14, '\xc4ea23d432eba24fdd5258ad178fad04ab9041c84df4c56177bdd846dad66b31', '\x0178f95241f52c43f65e223eff1929682b1829d8a27ad384087f9aa03bb1340fe88a94c424504ec2f42500bff92e02');
INSERT INTO public.texts VALUES (15, '\xc56fab953dd69c99deeee831395da74a83656ed0ffbe4f18021ef74fd35a5bcb', '\x0178f95241f52c831b0a4d9e10536d9373536a6294f49315921373926394141d0d8161516a606098146d6c986b539c5c94595062f7a8611dc27ea5cc1285a4a2fcec542550ca065a94929894938ac52300bf442750');
INSERT INTO public.texts VALUES (16, '\xca7661b26d0e3d3973166d4be32727f0ca8fafa45338050a24d2484d4adfd2ba', '\x0178f95241f52c43f65e323eff1929682b1829d8a27ad384087f9aa03bb1340fe88a94c424504ec2f42500c1032e04');
INSERT INTO public.texts VALUES (17, '\x09fe6a7c95bcec137b5dcb4f559c390c30ca6b67e099afe37d9d2efb3ed28d1a', '\x0178f95241f52c3553cb0a03210cfc17ef828fb2487f462c1b1741ecd6607bd89feff8d8e324381927934b0c6894d9a4b2526910fe42fa621df3e1023ee2a3f790572666da7d6de52e55fab454c9733a8a7fc7289e316426347031a032505c53f7e612146a4eddd0cedfca9436020cbcb2b034696d9c34da2aebe4f6882ea8e12c96bacfc94829b7f3041fafc21f2cb4448f');
INSERT INTO public.texts VALUES (18, '\x02bd6155b9a6f3592d9999c8cab52fe7ce4df6d95b642142af7b7055c217b25c', '\x007b226b6c223a2273227d');
INSERT INTO public.texts VALUES (19, '\x92e24381d8b7840bb0920ef574274001fdf71b4a653830fc4bf7d3b7e3a50634', '\x0178f95241f52c5554ed6ec2300c7c97fc4613429b269e054d9549d3d62224519a5210e2dde7b3611f3f93d867fb7c97bb8a442e8a43f2ec2b17acc6a023a7406330088a65226d77f7016d5c3b6a427d8138acb8240b512c4187bb63f0c0a9916fc6d31165d6c0e3241902105a656f316194cc5b379008056f7364f0f6e4d86488994e9c808ada5eac06e00bc5e545228dc409aefc43be80e5a52a5a836345d691922975a8210cb99e9d4cd75857ac6616dd4a9ecf69e0de36b87ddb7f626871832ea157e7e3f854c70f079c80488df16dd815c47e26edbce4b2445282a58f9c4f73374f642ad801b05fe9f67bf5be7139759ca415d4514cf7efb8712bf1858ef8965a5d82983e3744b9c7d7e31bfa4ba0d5');
INSERT INTO public.texts VALUES (20, '\x025d6a50fffd43bb870e50229a31b696622da8f7ae1519ece71af17013e43cc2', '\x0178f95241f52cc36a685a81856e466a628a8211baf1a579401352129340b900c385009a921910');
INSERT INTO public.texts VALUES (21, '\x19e611b32406bb40ec88e2474c0ce374af2a4ea65cf2f6264bfff675add6266e', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a58a2bbb2340fe89094c4245066c2f428007a1f3247');
INSERT INTO public.texts VALUES (22, '\x2c73f44e7241dac14a60126c30a7121f650295ff9b5be1a1cf44ffd5ecf9619b', '\x0178f95241f52cc36a683130dda01b5c9a07d49b9298044aff186e030024c51797');
INSERT INTO public.texts VALUES (23, '\x2dd88fcbe30fa12f6227a60deeee35a7660bb22b459609e3e9373f4de7e07efc', '\x0178f95241f52cc36a685a81856e466a628a8209baf1a579401352129340b900c385009aee1912');
INSERT INTO public.texts VALUES (24, '\x4423ba02dea8819c59ee22fb91d751e9778492a1ad58a4919b8b55dcf6ef44a5', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a18a0bbb2340fe89094c4245066c2f428007878323e');
INSERT INTO public.texts VALUES (25, '\x5b0b09d094eb170ab3bebd24e247828967377fe0867f35a96196401866b23c5a', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a181aa23bb3340fe89294c424506ec2f42900a3ad3270');
INSERT INTO public.texts VALUES (26, '\x6a442ffc250a1045770318fc1909e4da3f0aa6955b72fb44795bf84019746a27', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a58a0bbb2340fe89094c4245066c2f4280079f03246');
INSERT INTO public.texts VALUES (27, '\x81a2dd811ed961bd87de77f8bda51abf47c3ceb9758a4041c53518d9e5e47c85', '\x0178f95241f52cc36a685a81856e466a628a8219baf1a579401352129340b900c385009b4a1914');
INSERT INTO public.texts VALUES (28, '\x971213cc054b16279b61caeab56d308eec8b09a5b090d9b78f60a5052f4b6b05', '\x0178f95241f52cc36a685a81856e466a628a8201baf1a579401352129340b900c385009a36190e');
INSERT INTO public.texts VALUES (29, '\xa596a0b3e175826a4d047e61510a9858286056fa50ec871ba9872b6f15541136', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a18a1bbb2340fe89094c4245066c2f4280078d63240');
INSERT INTO public.texts VALUES (30, '\xa93950c2b33971fb1645e8ff04f0a2f5f5236d3ed9c715a64dd36cace08739f7', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a98a2bbb2340fe89094c4245066c2f4280079633243');
INSERT INTO public.texts VALUES (31, '\xac030f374319cf1522f142f7a867126acb92af39807ef6ce6dcce85546195538', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a181aa03bb3340fe89294c424506ec2f42900a37e326f');
INSERT INTO public.texts VALUES (32, '\xb24e845571b8cf5fcca24b6a8b34e1a2642d87e38882b3e5a74be50b6d57e89a', '\x0178f95241f52cc36a685a81856e466a628a8205baf1a579401352129340b900c385009ba61916');
INSERT INTO public.texts VALUES (33, '\xc32fabab1c690ec3a2ba6b346fa994ac974041eae03604835f823eb19818b502', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a18a2bbb2340fe89094c4245066c2f4280078a7323f');
INSERT INTO public.texts VALUES (34, '\xc7ffd1d394f4afe80f412b1b7fd429e3f2ddd76f8ccbe5f96f2fe1566bc7328d', '\x0178f95241f52cc36a685a81856e466a628a82a101baf9a579402352129340d900c38900ac58193f');
INSERT INTO public.texts VALUES (35, '\xc9d34f7aca5dc8139af30350ac29ec3002610291dac262ddbdf3a4fa3a5a71ed', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a18a3bbb2340fe89094c4245066c2f4280079053241');
INSERT INTO public.texts VALUES (36, '\xcdadc4e0a3c7c5f3d6c63cbc3def17566cdd24ec6ccea72d4acb1dbde38b58e1', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a98a0bbb2340fe89094c4245066c2f4280079343242');
INSERT INTO public.texts VALUES (37, '\xf2d61588b1882e535808886fc05e96bd87da76db654d3bc9d9ec71f25fe8f1e7', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a98a3bbb2340fe89094c4245066c2f4280079c13245');
INSERT INTO public.texts VALUES (38, '\xf4433bb37c150d2d1d0d1341fa55be8a3790a7ecdd7ad84adc837d0a45410e7a', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a98a1bbb2340fe89094c4245066c2f4280079923244');
INSERT INTO public.texts VALUES (39, '\x4699e120a586c900fa92cca770c815a6d9049f936da3c628a9e19f171b32a62b', '\x0178f95241f52cab464a854658521f6aaa83d88192e06211a91e228b3bbd233210840f4d9e104e5a626e664e26825f9e9a999e51528cc82b40a7a72426c174d70200ebe83ea3');
INSERT INTO public.texts VALUES (40, '\x70e12e3a20476e47f9e0a4add3163c9e6bd2a9881baffb0329098969bebc9d53', '\x0178f95241f52ced564b6a1c3110bd8a0864679b7c188cc92a3708f800a2a625f554d22d35927aecc1ccddf3aad41f06b2c822abe05d492ad5f7bd92de14d623d9331ac072f40549a581bb0bb42698c781e34e7cfdf8fefc8c8d93273770f4fb8e7fe56abbe4241909a1e3c2ca1a387e2188aec903458de74d25dc0fd9fb90f2f8776e6e0d470f6809056fbd5cb1ea32a3614cea8aa51f1c2bc1b8f6eb28265f3cf727c01a20f73573d7747c8f9b171b088095b3823af8add76bf87bd8f05559a1a1430078ff53265bd1391676de5410a451cb50354f8f0f878fa64b31e04ce082f8b5948bfa7d53fdb0d2517a0b4f92d548af28fb1c25b1330df30a26ea097725821d844826cd59b3a952b6abb8d97ce2ded3e3a18d24e9cb5a00c71990565c6086807b968b3dfa2a7cb8f5b979b2cb6ec363e07ede40de16560a9da1a583548c2ec7f3346df2e0cf7ed0b00edaa25392843b1fcb5c24f62195b2aa42fc37367994ec5577b2136d1e261b94549ff78525f753c6825be9986c9d735c2ec4c4c5db30a49d98da271dbc355589f3eb5de3b353711be2127304621c1de5a9f984b838864c183c7357b5968186e257ccdbe345617fb723bda1f8c1d148bd77f7e077f76b4a1cdff1dff04f66298dd94b63b89898aac696bd3e50386f6ff13703e0e48b6963d1e8e7008ab891e53bf0cea4ff8b49f25adebc9df820f4ab4cd0adc0b92ddc479b42d88cc8c666048ae82c7e06658d3afbd13b5ecd006a4dbcfe068c697b00');
INSERT INTO public.waivers VALUES (1, 'sandbox', 'main', 'eva', 'known', 'tools', '2026-03-31', NULL, NULL, NULL, '2026-11-28T21:30:39.295998+00:00', NULL);
SELECT pg_catalog.setval('public.asked_id_seq', 15, true);
SELECT pg_catalog.setval('public.blessings_id_seq', 1, true);
SELECT pg_catalog.setval('public.earlier_decisions_id_seq', 1, true);
SELECT pg_catalog.setval('public.engine_events_id_seq', 2, true);
SELECT pg_catalog.setval('public.metrics_id_seq', 4, true);
SELECT pg_catalog.setval('public.probe_failures_id_seq', 1, true);
SELECT pg_catalog.setval('public.readings_id_seq', 4, true);
SELECT pg_catalog.setval('public.runs_number_seq', 3, true);
SELECT pg_catalog.setval('public.sign_offs_id_seq', 1, true);
SELECT pg_catalog.setval('public.texts_id_seq', 40, true);
SELECT pg_catalog.setval('public.waivers_id_seq', 1, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.asked
    ADD CONSTRAINT asked_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.asked
    ADD CONSTRAINT asked_probe_item_key_item_group_key UNIQUE (probe, item_key, item_group);
ALTER TABLE ONLY public.blessings
    ADD CONSTRAINT blessings_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.earlier_decisions
    ADD CONSTRAINT earlier_decisions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.engine_events
    ADD CONSTRAINT engine_events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.items
    ADD CONSTRAINT items_pkey PRIMARY KEY (run, asked);
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT measurements_pkey PRIMARY KEY (run, metric);
ALTER TABLE ONLY public.metrics
    ADD CONSTRAINT metrics_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.metrics
    ADD CONSTRAINT metrics_probe_metric_slice_key UNIQUE (probe, metric, slice);
ALTER TABLE ONLY public.probe_failures
    ADD CONSTRAINT probe_failures_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.probe_failures
    ADD CONSTRAINT probe_failures_run_id_probe_kind_reason_key UNIQUE (run_id, probe, kind, reason);
ALTER TABLE ONLY public.readings
    ADD CONSTRAINT readings_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.readings
    ADD CONSTRAINT readings_unit_direction_estimator_level_method_key UNIQUE (unit, direction, estimator, level, method);
ALTER TABLE ONLY public.run_progress
    ADD CONSTRAINT run_progress_run_id_key UNIQUE (run_id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_id_key UNIQUE (id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.sign_offs
    ADD CONSTRAINT sign_offs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.texts
    ADD CONSTRAINT texts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.texts
    ADD CONSTRAINT texts_sha256_key UNIQUE (sha256);
ALTER TABLE ONLY public.waivers
    ADD CONSTRAINT waivers_pkey PRIMARY KEY (id);
CREATE INDEX ix_engine_events_run_id ON public.engine_events USING btree (run_id);
CREATE INDEX ix_runs_branch ON public.runs USING btree (family, branch, started);
CREATE INDEX ix_runs_started ON public.runs USING btree (started, id);
ALTER TABLE ONLY public.blessings
    ADD CONSTRAINT blessings_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.earlier_decisions
    ADD CONSTRAINT earlier_decisions_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.engine_events
    ADD CONSTRAINT engine_events_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.items
    ADD CONSTRAINT items_asked_fkey FOREIGN KEY (asked) REFERENCES public.asked(id);
ALTER TABLE ONLY public.items
    ADD CONSTRAINT items_run_fkey FOREIGN KEY (run) REFERENCES public.runs(number) ON DELETE CASCADE;
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT measurements_metric_fkey FOREIGN KEY (metric) REFERENCES public.metrics(id);
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT measurements_reading_fkey FOREIGN KEY (reading) REFERENCES public.readings(id);
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT measurements_run_fkey FOREIGN KEY (run) REFERENCES public.runs(number) ON DELETE CASCADE;
ALTER TABLE ONLY public.probe_failures
    ADD CONSTRAINT probe_failures_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.run_progress
    ADD CONSTRAINT run_progress_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.sign_offs
    ADD CONSTRAINT sign_offs_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
